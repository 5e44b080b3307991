/* The program's option parser. Options are rows of tables. Their values come from a command line and from `name =
 * value` files. The parser reports all problems, not only the first one.
 *
 * Command line: `--name value` or `--name=value`. A flag is `--name` or `--name=true|false`. A list's values are all
 * words up to the next `--name`. `--config FILE` can be at any position and is read first, so the command line
 * overrides the file. `--help` and `-h` set `help`, and a word after them becomes `help_word`. If an option is
 * repeated, its last occurrence applies, as in argparse.
 *
 * File: each line is `name = value`, without leading dashes. A flag is written as `name = true`. `#` at the start of a line or
 * after a blank starts a comment. A value can be in double quotes. A repeated option is an error.
 *
 * In names, `_` is equivalent to `-`. Python's True and False are read as true and false. The value `none`
 * unsets a number, a list of numbers, or a text without a default. A file may contain any bytes.
 *
 * On the command line, an option that the command does not read is an error, or only a note with notes_unread. In a
 * file, such an option is skipped, so that commands can share a file. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

/* Lists of values, allocated in the parse's arena. */
typedef struct TextList {
    const char **at;
    int64_t count;
} TextList;
/* Returns whether `name` is in a list of names that are separated by blanks or commas. An empty list selects
 * all names. */
bool text_list_selects(const TextList *, const char *name);
/* Returns a user error, which names --`option`, if a name in the list is missing from `names`. */
Err text_list_check(const TextList *, const char *option, const char *const *names, int n);
typedef struct I64List {
    int64_t *at;
    int64_t count;
} I64List;

/* The value of an I64 option that is not set. An unset F64 is NaN, an unset TEXT is NULL, and an unset list is
 * empty. */
#define I64_UNSET INT64_MIN
static inline bool i64_is_set(int64_t v) { return v != I64_UNSET; }
static inline bool f64_is_set(double v) { return !isnan(v); }
static inline int64_t i64_or(int64_t v, int64_t fallback) { return i64_is_set(v) ? v : fallback; }
static inline double f64_or(double v, double fallback) { return f64_is_set(v) ? v : fallback; }

typedef enum ArgType {
    ARG_GROUP, /* the start of a group of options; `names` is the group's title */
    ARG_FLAG,  /* a bool that is off unless the option is given */
    ARG_OFF,   /* a bool that is on unless the option is given, such as --no-... and --disable-... */
    ARG_I64,
    ARG_F64,
    ARG_TEXT,  /* const char * */
    ARG_ENUM,  /* any C enum; `choices` lists the spellings in the order of the constants */
    ARG_TEXTS, /* TextList */
    ARG_I64S,  /* I64List; values are separated by blanks or commas, and can be in parentheses */
} ArgType;

typedef struct Arg {
    /* "name|other|other=value|~other", without leading dashes. The first spelling is the option's name, and the others
     * are synonyms. `other=value` is a flag that sets this value. A spelling marked ~ does not exist in Megatron-LM,
     * and a note reports its use. */
    const char *names;
    ArgType type;
    size_t offset;        /* the field's offset in the target */
    const char *fallback; /* the default as a command-line value; "none" means that the option is not set */
    const char *const *choices;
    const char *help;
    bool required;
} Arg;

/* Declares an option whose value is stored in a field of a struct. Additional members of Arg may follow, as in
 * ARG_ROW(Options, input, "input", ARG_TEXT, "none", "A file.", .required = true). */
#define ARG_ROW(struct_, field, name, kind, otherwise, text, ...)                                            \
    {                                                                                                        \
        .names = name, .type = kind, .offset = offsetof(struct_, field), .fallback = otherwise,              \
        .help = text, __VA_ARGS__                                                                            \
    }

/* Options of another program (Megatron-LM). Some foreign options are accepted, so that Megatron-LM's command
 * lines run unchanged; others are refused with a reason. Foreign options set no field. */
typedef enum ForeignKind { FOREIGN_NOTED, FOREIGN_REFUSED } ForeignKind;
/* Where foreign options are accepted: on the command line and in a file (READ), only on the command line (ON_LINE), or
 * nowhere (UNUSED). In a file, foreign options that are not accepted are skipped. */
typedef enum ForeignPlace { FOREIGN_READ, FOREIGN_ON_LINE, FOREIGN_UNUSED } ForeignPlace;
typedef struct Foreign {
    ForeignKind kind;
    /* If `option` is NULL, `words` contains foreign options such as "flag value= list+ value=this,that". The
     * last of these options accepts only the values `this` and `that`. If `option` is not NULL, `words`
     * contains foreign values of Isotron's option `option`; they are translated to `ours` ("" means
     * ignored). */
    const char *option, *ours, *words;
    const char *reason; /* complete sentences; they include the remedy if the option is refused */
} Foreign;

struct Choice;
typedef struct ArgTable {
    const Arg *rows;
    int64_t count;
    const Foreign *foreign;
    int64_t num_foreign;
    ForeignPlace foreign_use;
    bool notes_unread; /* whether a Megatron-LM option that the command does not read causes a note instead of
                          an error */
    bool (*accepts)(int use, int64_t row); /* whether the command reads the option; NULL if it reads all
                                              options */
    int use;
    const char *command;   /* the command's name, for messages */
    void *target;          /* the struct that holds the fields */
    unsigned char *given;  /* [count], 0 if an option has its default; if NULL, the parser allocates the
                            * array */
    struct Choice *chosen; /* [count], the last spelling of each option (set by the parser) */
} ArgTable;

/* Declares a table of options for a struct. Additional members of ArgTable may follow. */
#define ARG_TABLE(rows_, target_, ...)                                                                       \
    ((ArgTable){.rows = rows_, .count = sizeof rows_ / sizeof *rows_, .target = target_, __VA_ARGS__})

/* ARG_BAD in `given` means that the option was given with an invalid value. */
enum { ARG_TABLES = 4, ARG_PROBLEMS = 40, ARG_BAD = 255 };

/* A message about an option that was given. args_end combines remarks with the same kind and text into one message. */
typedef enum RemarkKind {
    REMARK_IDLE,    /* the note "--name has no effect<text>" */
    REMARK_TAKEN,   /* the note "--name is treated as<text>" */
    REMARK_REFUSED, /* the problem "--name is not supported<text>" */
} RemarkKind;
typedef struct Remark {
    RemarkKind kind;
    const char *option, *text; /* option: "--name", or "--name value" */
} Remark;

/* The state and results of a parse. args_init initializes an Args, and args_free releases its problems and
 * notes. Values belong to the arena. */
typedef struct Args {
    const char *usage;        /* such as "isotron parity DIR [options]" */
    const char *operand_name; /* the operands' name ("DIR"), or NULL if operands are not allowed */
    Arena *arena;
    ArgTable tables[ARG_TABLES];
    int num_tables, sources;
    int line; /* number of the last source that was a command line, counted from 1, or 0 if there was none */
    TextList operands;
    TextList configs; /* the paths given with --config */
    bool help;
    const char *help_word; /* the help lists only options that contain this word; NULL means all options */
    /* true if an options file could not be read; in this case, no other problems are reported */
    bool unreadable;
    int64_t num_problems;
    Str problems; /* one message per line, at most ARG_PROBLEMS */
    Str notes;    /* messages that are not errors, one per line */
    /* whether args_print_idle, rather than args_end, prints the notes about options without effect */
    bool keeps_idle;
    Remark *remarks;
    int64_t num_remarks;
} Args;

void args_init(Args *, Arena *, const char *usage, const char *operand_name);
void args_free(Args *);
/* Adds a table and sets its target to the defaults. */
void args_use(Args *, ArgTable);
/* Reads `argc` arguments. argv must not include the names of the program and command. */
void args_line(Args *, int argc, char **argv);
void args_file(Args *, const char *path);
/* Like args_file, but reads bytes from memory. Messages show `name` instead of a path. */
void args_bytes(Args *, const char *name, const char *bytes, size_t n);
/* args_problem and args_note add a message, unless the same message has already been added. */
void args_problem(Args *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void args_note(Args *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Adds a remark. The text of a remark must not be empty. The text, such as ": reason" or " without --x.", directly
 * follows "has no effect" or similar words in the message. */
void args_remark(Args *, RemarkKind, const char *option, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Reports a problem for each value of --name that is not UTF-8 text. */
void args_check_texts(Args *, const char *name, const TextList *);
/* Reports the problem "--name is not used <why>: remove it" if the last command line contains the option. */
void args_refuse(Args *, const char *name, const char *why);
/* Calls args_refuse for every option in the table with this target. */
void args_refuse_all(Args *, const void *target, const char *why);
/* Ends the parse. Call this function after reading all sources, and before using any value. Reports missing
 * required options, and returns one Err for all problems. The Err's message is a summary; `problems` contains
 * the separate messages. */
Err args_end(Args *);
/* Adds the remarks' messages. args_end calls this function. */
void args_print_remarks(Args *);
/* Adds the notes that keeps_idle has deferred. If there are more than three and `all` is false, adds instead a single
 * note with the number of options that have no effect. */
void args_print_idle(Args *, bool all);
/* Appends the text of --help, in lines of at most `width` columns: the usage, followed by the accepted options by
 * group. With help_word, lists only options whose name, values or help contain this word. */
void args_help(const Args *, int width, Str *out);

/* ---- foreign options (foreign.c) ---- */

typedef struct ForeignOption {
    const Foreign *row;
    const char *name, *only; /* only: the accepted values, such as "this,that", or NULL */
    size_t len, only_len;
    char arity; /* 0: a flag; '=': one value; '+': any number of values */
} ForeignOption;
bool foreign_find(const ArgTable *, const char *key, size_t len, ForeignOption *out);
bool foreign_allows(const ForeignOption *, const char *value);
/* Returns the row that translates or refuses a value of an Isotron option, or NULL if there is none. */
const Foreign *foreign_value(const ArgTable *, const Arg *, const char *value);
void foreign_use(Args *, const Foreign *, const char *option);
/* Returns whether a and b are the same name. `_` is equivalent to `-`. */
bool args_same_name(const char *a, size_t a_len, const char *b, size_t b_len);

/* ---- values of options (argvalue.c) ----
 *
 * A value is spelled the same way everywhere: in defaults, on the command line, in files, in help texts and in the
 * documentation. */

/* Parses n words, and sets the field. On failure, returns false and appends text such as "a whole number, not 'x'" to
 * `expected`. */
bool arg_parse(const Arg *, void *field, Arena *, const char *const *words, int64_t n, Str *expected);
/* Sets the field to the default. */
void arg_default(const Arg *, void *field, Arena *);
/* Appends the value as text, such as "1e-05", "RMSNorm" or "none". */
void arg_print(const Arg *, const void *field, Str *out);
/* Appends the placeholder for a value: "N", "NUMBER", "TEXT ..." or "{a|b}". For flags, appends nothing. */
void arg_metavar(const Arg *, Str *out);
/* Returns the length of the option's first spelling in `names`. */
size_t arg_name_len(const Arg *);
