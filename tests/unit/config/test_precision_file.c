/* Files of --te-precision-config-file: the rules that they define, and the messages for other files. */
#include "unit/config/command_lines.h"
#include "unit/config/parse.h"
#include "unit/temp_dir.h"

#include <stdio.h>

#include "base/file.h"

#define TE      "{transformer_engine_config_type: TEQuantizationParams, training_recipe: {"
#define MATCHER "{type: glob, pattern: '*.fc?', config: a, enabled: "
/* a file with a config `a`, whose recipe has these keys, and an enabled matcher */
#define RECIPE(keys) "configs: {a: " TE keys "}}}\nmatchers: {m: " MATCHER "yes}}\n"

static const struct {
    const char *file;
    PrecisionRule rule; /* the last one */
} VALID_FILES[] = {
    {RECIPE(""), {"*.fc?", FP8_NONE, FP8_DELAYED, true, false}},
    {RECIPE("fp8_quantization_recipe: blockwise"), {"*.fc?", FP8_E4M3, FP8_BLOCKWISE, true, false}},
    {RECIPE("fp8_quantization_recipe: tensorwise, fp8_format: hybrid, override_nonquantized_autocast: on, "
            "override_quantized_autocast: FALSE, fp8_param: no, fp4_quantization_recipe: NULL"),
     {"*.fc?", FP8_HYBRID, FP8_TENSORWISE, false, true}},
    {"configs: {a: " TE "}}, b: {fp4: 1}}\nmatchers: {m: " MATCHER "True}, n: {config: b, enabled: false}}\n",
     {"*.fc?", FP8_NONE, FP8_DELAYED, true, false}},
};

static const struct {
    const char *file, *message;
} REFUSED_FILES[] = {
    {RECIPE("fp8_quantization_recipe: delayed"), "delayed scaling of single modules is not supported"},
    {RECIPE("fp8_quantization_recipe: mxfp8"), ":1: 'mxfp8' is not supported: use tensorwise or blockwise"},
    {RECIPE("fp8_quantization_recipe: blockwise, fp8_format: none"), "use e4m3 or hybrid"},
    {RECIPE("fp8_quantization_recipe: blockwise, fp8_format: x"), "'x' is not supported: use e4m3 or hybrid"},
    {RECIPE("fp4_quantization_recipe: nvfp4"), "does not support fp4_quantization_recipe. Use fp8_"},
    {RECIPE("fp4_param: true"), "does not support fp4_param"},
    {RECIPE("custom_recipe_factory: a.b"), "does not support custom_recipe_factory"},
    {RECIPE("fp8_param: true"), "does not support fp8_param. Remove it"},
    {RECIPE("tp_only_amax_red: true"), "does not support tp_only_amax_red"},
    {RECIPE("tp_only_amax_red: 1"), "must be true or false"},
    {RECIPE("recipe: 1"), "training_recipe has the key 'recipe', which Isotron does not support"},
    {RECIPE("fp8_param: no, fp8_param: no"), "training_recipe has the key 'fp8_param' twice"},
    {"configs: {a: {transformer_engine_config_type: x, training_recipe: {}}}\nmatchers: {m: " MATCHER
     "on}}\n",
     ":1: transformer_engine_config_type must be TEQuantizationParams"},
    {"configs: {a: {transformer_engine_config_type: TEQuantizationParams}}\nmatchers: {m: " MATCHER "on}}\n",
     "the config has no training_recipe. Add it"},
    {"configs: {a: " TE "}, evaluation_recipe: {}}}\nmatchers: {m: " MATCHER "on}}\n",
     "evaluates with the training recipe. Remove evaluation_recipe"},
    {"configs: {a: 1}\nmatchers: {m: " MATCHER "on}}\n", "a config must be a mapping"},
    {"configs: {}\nmatchers: {m: " MATCHER "on}}\n", ":2: configs has no entry 'a'"},
    {"matchers: {m: {type: glob, config: a, enabled: true}}", "the matcher has no pattern. Add it"},
    {"matchers: {m: {type: regex, pattern: x, config: a, enabled: true}}",
     "'regex' is not supported: use glob"},
    {"matchers: {m: {type: glob, pattern: 'x[^a]', config: a, enabled: true}}", "'x[^a]': [^ and [[ are not"},
    {"matchers: {m: {layers: 3}}", "a matcher has the key 'layers'"},
    {"matchers: [a]", "matchers must be a mapping"},
    {"configs: [a]\nmatchers: {m: " MATCHER "on}}\n", "configs must be a mapping"},
    {"configs: {a: " TE "}}, a: " TE "fp8_quantization_recipe: blockwise}}}\nmatchers: {m: " MATCHER "on}}\n",
     "configs has the key 'a' twice. Remove one"},
    {"configs: {a: " TE "}}}\nmatchers:\n  m: " MATCHER "on}\n  m: " MATCHER "no}\n",
     ":4: matchers has the key 'm' twice"},
    {RECIPE("fp8_format: hybrid"), "fp8_format applies only with fp8_quantization_recipe. Remove it"},
    {RECIPE("fp8_param: 'no'"), "must be true or false"},
    {RECIPE("fp8_quantization_recipe: ''"), ":1: '' is not supported: use tensorwise or blockwise"},
    {"matchers: {m: " MATCHER "false}}", "has no enabled matcher"},
    {"", "has no enabled matcher"},
    {"- a\n", "the file must be a mapping"},
    {"a: [\n", ":2: this is not YAML"},
    {RECIPE("") "---\na: 1\n", ":4: a second document begins here"},
};

/* Parses a command line with the file. */
static void parse_file(Parsed *p, const char *text) {
    char dir[64], path[128], words[512];
    temp_dir(dir);
    snprintf(path, sizeof path, "%s/precision.yaml", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    snprintf(words, sizeof words, TENSOR "--te-precision-config-file %s", path);
    parse(p, CHECK_MODEL, words);
    file_remove_tree(dir);
}

TEST(files_define_rules) {
    for (size_t i = 0; i < sizeof VALID_FILES / sizeof *VALID_FILES; i++) {
        Parsed p;
        parse_file(&p, VALID_FILES[i].file);
        if (p.err.code) fail_msg("%s: %s", VALID_FILES[i].file, p.args.problems.s);
        const PrecisionRule *got = &p.c.precision_rules.at[p.c.precision_rules.count - 1],
                            *want = &VALID_FILES[i].rule;
        assert_string_equal(got->pattern, want->pattern);
        assert_int_equal(got->format, want->format);
        assert_int_equal(got->recipe, want->recipe);
        assert_int_equal(got->overrides_fp8, want->overrides_fp8);
        assert_int_equal(got->overrides_bf16, want->overrides_bf16);
        done(&p);
    }
}

TEST(other_files_are_refused) {
    for (size_t i = 0; i < sizeof REFUSED_FILES / sizeof *REFUSED_FILES; i++) {
        Parsed p;
        parse_file(&p, REFUSED_FILES[i].file);
        const char *said = p.args.problems.len ? p.args.problems.s : "nothing";
        if (!strstr(said, REFUSED_FILES[i].message)) fail_msg("%s: %s", REFUSED_FILES[i].file, said);
        done(&p);
    }
}
