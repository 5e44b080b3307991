/* Tests the option parser with a small table of options: values, spellings, sources, error messages. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unit/err.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/philox.h"
#include "config/args.h"

typedef enum Color { RED, GREEN, BLUE } Color;
static const char *const COLORS[] = {"red", "green", "blue", NULL};

typedef struct Target {
    bool loud, fused;
    int64_t count;
    double rate;
    const char *path;
    Color color;
    TextList names;
    I64List window;
    int64_t other;
} Target;

static const Arg ROWS[] = {
    {"loud", ARG_FLAG, offsetof(Target, loud), "off", NULL, "Be loud.", false},
    {"no-fusion|fusion=false", ARG_OFF, offsetof(Target, fused), "on", NULL, "Not fused.", false},
    {"count|old-count", ARG_I64, offsetof(Target, count), "none", NULL, "A count.", false},
    {"rate", ARG_F64, offsetof(Target, rate), "1e-5", NULL, "A rate.", false},
    {"path", ARG_TEXT, offsetof(Target, path), "none", NULL, "A path.", false},
    {"color|green=green|~verdant=green", ARG_ENUM, offsetof(Target, color), "red", COLORS, "A color.", false},
    {"names", ARG_TEXTS, offsetof(Target, names), "none", NULL, "Names.", false},
    {"window", ARG_I64S, offsetof(Target, window), "none", NULL, "A window.", false},
    {.names = "Elsewhere", .type = ARG_GROUP},
    {"other", ARG_I64, offsetof(Target, other), "3", NULL, "Of another command.", false},
};
enum { NROWS = sizeof ROWS / sizeof ROWS[0] };

static const Foreign FOREIGN[] = {
    {FOREIGN_NOTED, NULL, NULL, "trace trace-path= trace-ranks+", "Nothing is traced."},
    {FOREIGN_NOTED, NULL, NULL, "depth=one,two", "Depth is one."},
    {FOREIGN_REFUSED, NULL, NULL, "magic magic-size=", "Magic would change the colors. Remove it."},
    {FOREIGN_NOTED, "color", "green", "lime moss", "It is a green."},
    {FOREIGN_NOTED, "names", "", "nobody", "Nobody has a name."},
    {FOREIGN_REFUSED, "color", NULL, "infrared", "It cannot be seen. Use red."},
};

typedef struct Case {
    Arena *arena;
    Args args;
    Target t;
    unsigned char given[NROWS];
} Case;

static bool accepts(int without, int64_t row) { return row != without; }

static void begin(Case *c, const char *operand) {
    memset(c, 0, sizeof *c);
    c->arena = arena_new();
    args_init(&c->args, c->arena, "test [options]", operand);
    args_use(&c->args, (ArgTable){.rows = ROWS,
                                  .count = NROWS,
                                  .foreign = FOREIGN,
                                  .num_foreign = sizeof FOREIGN / sizeof *FOREIGN,
                                  .accepts = accepts,
                                  .use = NROWS - 1,
                                  .command = "test",
                                  .target = &c->t,
                                  .given = c->given});
}

static void end(Case *c) {
    args_free(&c->args);
    arena_free(c->arena);
}

#define LINE(c, ...)                                                                                         \
    args_line(&(c)->args, (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)), (char *[]){__VA_ARGS__})
#define TEXT(c, text) args_bytes(&(c)->args, "run.conf", text, sizeof text - 1)

static void expect(Case *c, const char *sentences) {
    Err e = args_end(&c->args);
    assert_string_equal(c->args.problems.s ? c->args.problems.s : "", sentences);
    assert_int_equal(e.code, *sentences ? ERR_USER : ERR_NONE);
    end(c);
}

TEST(defaults_are_set) {
    Case c;
    begin(&c, NULL);
    assert_false(c.t.loud);
    assert_true(c.t.fused);
    assert_false(i64_is_set(c.t.count));
    assert_true(c.t.rate == 1e-5);
    assert_null(c.t.path);
    assert_int_equal(c.t.color, RED);
    assert_int_equal(c.t.names.count + c.t.window.count, 0);
    for (int i = 0; i < NROWS; i++) assert_int_equal(c.given[i], 0);
    expect(&c, "");
}

TEST(line_sets_every_type) {
    Case c;
    begin(&c, "DIR");
    LINE(&c, "here", "--loud", "--no-fusion", "--count", "-12", "--rate=2.5e-3", "--path", "a b", "--color",
         "blue", "--names", "x", "y", "--window", "(127,0)");
    assert_true(c.t.loud);
    assert_false(c.t.fused);
    assert_int_equal(c.t.count, -12);
    assert_true(c.t.rate == 2.5e-3);
    assert_string_equal(c.t.path, "a b");
    assert_int_equal(c.t.color, BLUE);
    assert_int_equal(c.t.names.count, 2);
    assert_string_equal(c.t.names.at[1], "y");
    assert_int_equal(c.t.window.count, 2);
    assert_int_equal(c.t.window.at[0], 127);
    assert_int_equal(c.args.operands.count, 1);
    assert_string_equal(c.args.operands.at[0], "here");
    expect(&c, "");
}

TEST(file_sets_every_type) {
    Case c;
    begin(&c, NULL);
    TEXT(&c, "\xEF\xBB\xBF# a comment\n\n loud = true\r\nno-fusion = true # why\ncount = none\nrate=3\npath "
             "= \"a # b\"\n"
             "color = green\nnames = one#1 \"two words\"\nwindow = 1, -1\t#2");
    assert_true(c.t.loud);
    assert_false(c.t.fused);
    assert_true(c.t.rate == 3);
    assert_string_equal(c.t.path, "a # b");
    assert_int_equal(c.t.color, GREEN);
    assert_string_equal(c.t.names.at[0], "one#1");
    assert_string_equal(c.t.names.at[1], "two words");
    assert_int_equal(c.t.window.at[1], -1);
    expect(&c, "");
}

TEST(line_overrides_its_config_file) {
    char path[] = "/tmp/isotron-conf-XXXXXX";
    int fd = mkstemp(path);
    static const char text[] = "count = 1\nloud = true\ngreen = true\nrate = 7\n";
    assert_int_equal(write(fd, text, sizeof text - 1), (int)sizeof text - 1);
    close(fd);
    Case c;
    begin(&c, NULL);
    LINE(&c, "--count", "2", "--loud=false", "--green=false", "--config", path);
    assert_int_equal(c.t.count, 2);
    assert_false(c.t.loud);
    assert_int_equal(c.t.color, RED);
    assert_true(c.t.rate == 7);
    expect(&c, "");
    char *word = mem_printf("--config=%s", path);
    begin(&c, NULL);
    LINE(&c, word, "--count", "3");
    assert_int_equal(c.t.count, 3);
    assert_true(c.t.loud);
    expect(&c, "");
    free(word);
    unlink(path);
}

TEST(spellings_stand_for_values) {
    Case c;
    begin(&c, NULL);
    LINE(&c, "--verdant", "--old-count", "4");
    assert_int_equal(c.t.color, GREEN);
    assert_int_equal(c.t.count, 4);
    assert_string_equal(c.args.notes.s, "--verdant is treated as Megatron-LM's --color green.\n");
    expect(&c, "");
}

/* `fusion` is the opposite of `no-fusion`, and both of its values have an effect. */
TEST(a_boolean_may_be_spelled_by_its_opposite) {
    Case c;
    begin(&c, NULL);
    LINE(&c, "--fusion");
    assert_true(c.t.fused);
    assert_int_equal(c.given[1], 1);
    expect(&c, "");
    begin(&c, NULL);
    LINE(&c, "--fusion=false");
    assert_false(c.t.fused);
    assert_int_equal(c.given[1], 1);
    expect(&c, "");
    begin(&c, NULL);
    LINE(&c, "--fusion", "--no-fusion");
    expect(&c, "--fusion and --no-fusion contradict each other: remove one of them.\n");
}

TEST(the_last_of_a_line_holds) {
    Case c;
    begin(&c, NULL);
    LINE(&c, "--count", "1", "--names", "x", "y", "--loud", "--old-count", "2", "--names", "z",
         "--loud=false");
    assert_int_equal(c.t.count, 2);
    assert_int_equal(c.t.names.count, 1);
    assert_false(c.t.loud);
    expect(&c, "");
}

TEST(only_switches_that_differ_contradict) {
    Case c;
    begin(&c, NULL);
    LINE(&c, "--green", "--color", "green", "--verdant", "--green");
    assert_int_equal(c.t.color, GREEN);
    expect(&c, "");
    begin(&c, NULL);
    LINE(&c, "--green", "--color", "blue");
    expect(&c, "--green and --color contradict each other: remove one of them.\n");
    begin(&c, NULL);
    LINE(&c, "--color", "blue", "--green=false");
    assert_int_equal(c.t.color, BLUE);
    expect(&c, "");
}

TEST(a_file_says_everything_once) {
    Case c;
    begin(&c, NULL);
    TEXT(&c, "count = 1\nold_count = 1\ncolor = green\ngreen = true\nloud = true\nloud = true\n");
    expect(&c, "run.conf:2: old-count is given twice: keep one of them.\n"
               "run.conf:6: loud is given twice: keep one of them.\n");
}

/* The words after an option that does not exist here are read only as its values. */
TEST(foreign_options_are_noted_or_refused) {
    Case c;
    begin(&c, NULL);
    LINE(&c, "--trace", "--trace-path", "-1", "--trace_ranks", "0", "1", "--count", "3", "--depth=two",
         "--trace");
    assert_int_equal(c.t.count, 3);
    assert_ok(args_end(&c.args));
    assert_string_equal(c.args.notes.s,
                        "--trace, --trace-path and --trace-ranks have no effect: Nothing is traced.\n"
                        "--depth has no effect: Depth is one.\n");
    end(&c);
    begin(&c, NULL);
    LINE(&c, "--magic", "--depth", "three", "--trace-path", "--magic-size", "3", "--trace=false", "--lout",
         "3");
    expect(&c, "--depth three is not supported: use one,two, or remove it. Depth is one.\n"
               "--trace-path expects a value, but none follows.\n"
               "'--lout' is not an option: did you mean --loud?\n"
               "--magic and --magic-size are not supported: Magic would change the colors. Remove it.\n");
    begin(&c, NULL);
    TEXT(&c, "trace_ranks = 0 1\nmagic = False\ndepth = one\ncount = 3\n");
    assert_int_equal(c.t.count, 3);
    expect(&c, "");
}

TEST(foreign_values_are_translated_or_refused) {
    Case c;
    begin(&c, NULL);
    LINE(&c, "--color", "moss", "--names", "nobody", "x", "--count", "3");
    assert_int_equal(c.t.color, GREEN);
    assert_int_equal(c.t.names.count, 1);
    assert_string_equal(c.t.names.at[0], "x");
    assert_ok(args_end(&c.args));
    assert_string_equal(c.args.notes.s, "--color moss is treated as green: It is a green.\n"
                                        "--names nobody has no effect: Nobody has a name.\n");
    end(&c);
    begin(&c, NULL);
    LINE(&c, "--color", "infrared");
    assert_int_equal(c.given[5], ARG_BAD);
    expect(&c, "--color infrared is not supported: It cannot be seen. Use red.\n");
}

/* A configuration file written by a Python program may contain Python's argument names and values, and switches that
 * are off. */
TEST(names_and_flags_may_be_pythons) {
    Case c;
    begin(&c, NULL);
    TEXT(&c, "old_count = 7\nno_fusion = True\nloud = False\ncolor = blue\ngreen = false\n");
    assert_int_equal(c.t.count, 7);
    assert_false(c.t.loud);
    assert_false(c.t.fused);
    assert_int_equal(c.t.color, BLUE); /* switching off the spelling of another choice changes nothing */
    expect(&c, "");
}

TEST(every_mistake_is_a_sentence) {
    Case c;
    begin(&c, NULL);
    LINE(&c, "--coumt", "3", "--xyzzy", "--rate", "fast", "--count", "1.5", "--color", "pink", "--path",
         "--loud", "stray", "--loud", "--window", "1,x", "--other", "3", "--green=maybe", "--config");
    expect(&c, "--config expects the path of a file with `name = value` lines.\n"
               "'--coumt' is not an option: did you mean --count?\n"
               "'--xyzzy' is not an option: see --help for the list.\n"
               "--rate expects a number, not 'fast'.\n"
               "--count expects a whole number, not '1.5'.\n"
               "--color expects one of red, green, blue, not 'pink'.\n"
               "--path expects a value, but none follows.\n"
               "'stray' does not belong to any option: options begin with two dashes.\n"
               "--window expects whole numbers, not '1,x'.\n"
               "--other is not used in test: remove it.\n"
               "--green expects true or false, not 'maybe'.\n");
}

TEST(every_mistake_in_a_file_has_its_line) {
    Case c;
    begin(&c, NULL);
    TEXT(&c, "coumt = 3\ncount\nrate =\nloud = yes\nother = 4\npath = \"open\nnames = \"open\ncount = "
             "99999999999999999999\n= 3\nloud\n--green\ncount 4\nxyzzy 4\n--count = 5x\n"
             "nul = \0\n\xff\xfe = \x01");
    assert_int_equal(c.t.other, 3); /* an unknown key is skipped, because commands share files */
    expect(&c, "run.conf:1: 'coumt' is not an option: did you mean count?\n"
               "run.conf:2: 'count' is not a `name = value` line: write `count = VALUE`.\n"
               "run.conf:3: rate expects a value, but none follows.\n"
               "run.conf:4: loud expects true or false, not 'yes'.\n"
               "run.conf:6: the value of path has no closing quote.\n"
               "run.conf:7: the value of names has no closing quote.\n"
               "run.conf:8: count expects a number of magnitude at most 9223372036854775807, not "
               "'99999999999999999999'.\n"
               "run.conf:9: '= 3' is not a `name = value` line.\n"
               "run.conf:10: 'loud' is not a `name = value` line: write `loud = true`.\n"
               "run.conf:11: '--green' is not a `name = value` line: write `green = true`.\n"
               "run.conf:12: 'count 4' is not a `name = value` line: write `count = 4`.\n"
               "run.conf:13: 'xyzzy 4' is not a `name = value` line.\n"
               "run.conf:14: '--count' is not an option: did you mean count?\n"
               "run.conf:15: the line contains a NUL byte: this is not a text file.\n"
               "run.conf:16: '\\xff\\xfe' is not an option: see --help for the list.\n");
}

TEST(numbers_must_be_finite_and_whole) {
    static const char *const bad[] = {"nan", "inf", "1e999", " 1", "1 ", "", "0x", "1,5"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Case c;
        begin(&c, NULL);
        LINE(&c, "--rate", (char *)bad[i]);
        assert_int_equal(c.args.num_problems, 1);
        end(&c);
    }
}

TEST(a_missing_file_is_a_sentence) {
    Case c;
    begin(&c, NULL);
    LINE(&c, "--config=/nowhere/run.conf");
    assert_int_equal(args_end(&c.args).code, ERR_USER);
    assert_non_null(strstr(c.args.problems.s, "/nowhere/run.conf"));
    end(&c);
}

TEST(required_options_are_demanded) {
    static const Arg rows[] = {{"input", ARG_TEXT, 0, "none", NULL, "The file to read.", true}};
    const char *input;
    Arena *arena = arena_new();
    Args args;
    args_init(&args, arena, "test", NULL);
    args_use(&args, (ArgTable){.rows = rows, .count = 1, .target = &input});
    assert_string_equal(args_end(&args).msg, "--input is required: The file to read.");
    args_free(&args);
    arena_free(arena);
}

TEST(help_lists_what_the_command_accepts) {
    Case c;
    begin(&c, NULL);
    LINE(&c, "--help");
    assert_true(c.args.help);
    Str help = {0};
    args_help(&c.args, INT_MAX, &help);
    assert_non_null(strstr(help.s, "usage: test [options]"));
    assert_non_null(
        strstr(help.s, "--color {red|green|blue}\n        A color. Default: red. Also: --green --verdant."));
    assert_non_null(strstr(help.s, "Not fused. Also: --fusion for false."));
    assert_null(strstr(help.s, "--other"));
    str_free(&help);
    expect(&c, "");
}

TEST(help_finds_a_word) {
    static const char *const words[][3] = {{"FUSION", "--no-fusion", "--loud"},
                                           {"--old_count", "--count", "--rate"},
                                           {"color.", "--color", "--count"},
                                           {"other", "No option has 'other'", "--other"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        Case c;
        begin(&c, NULL);
        LINE(&c, "--help", (char *)words[i][0] + (words[i][0][0] == '-' ? 2 : 0), "--loud");
        Str help = {0};
        args_help(&c.args, INT_MAX, &help);
        assert_non_null(strstr(help.s, words[i][1]));
        assert_null(strstr(help.s, words[i][2]));
        assert_null(strstr(help.s, "usage"));
        str_free(&help);
        end(&c);
    }
}

TEST(an_option_can_be_refused_later) {
    Case c;
    begin(&c, NULL);
    TEXT(&c, "rate = 1\ncount = 2\n");
    LINE(&c, "--count", "3", "--loud");
    args_refuse(&c.args, "rate", "here"); /* only options on the command line are refused */
    args_refuse(&c.args, "count", "here");
    args_refuse_all(&c.args, &c.t, "there");
    expect(&c, "--count is not used here: remove it.\n"
               "--loud is not used there: remove it.\n"
               "--count is not used there: remove it.\n");
}

/* For long lines, many lines and arbitrary bytes, the parser returns at most ARG_PROBLEMS messages of one
 * line each, and never crashes or stalls. */
TEST(any_bytes_are_survived) {
    static const char seed[] =
        "count = 12\nrate = 1e-3 # c\nnames = a \"b c\" d\nwindow = 1,2\ncolor = blue\nloud = true\n";
    for (uint64_t round = 0; round < 3000; round++) {
        char text[sizeof seed];
        memcpy(text, seed, sizeof seed);
        for (uint64_t k = 0; k < 1 + round % 8; k++)
            text[philox_u32(1, round, 2 * k) % (sizeof seed - 1)] = (char)philox_u32(1, round, 2 * k + 1);
        Case c;
        begin(&c, NULL);
        args_bytes(&c.args, "fuzz", text, philox_u32(2, round, 0) % sizeof seed);
        args_end(&c.args);
        end(&c);
    }
    enum { BIG = 10 << 20 };
    char *big = mem_alloc(BIG);
    for (int fill = 0; fill < 4; fill++) {
        memset(big, "x\nx\""[fill], BIG);
        if (fill == 2) memcpy(big, "names = ", 8);
        if (fill == 3)
            for (int i = 0; i < BIG; i++) big[i] = "k=\n"[i % 3];
        Case c;
        begin(&c, NULL);
        args_bytes(&c.args, "big", big, BIG);
        int64_t lines = 0;
        for (size_t i = 0; i < c.args.problems.len; i++) lines += c.args.problems.s[i] == '\n';
        assert_int_equal(lines, fill == 1 ? 0 : fill == 3 ? ARG_PROBLEMS : 1);
        end(&c);
    }
    free(big);
}
