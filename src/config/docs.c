/* Generates docs/reference/options.md from options.def and megatron.def. */
#include "config/config.h"

#include <string.h>

/* How a class is written in a list of facts. */
static const char *const CLASS_FACT[] = {
    [CLASS_ARCH] = ", ARCH", [CLASS_NUMERIC] = ", NUMERIC", [CLASS_LAYOUT] = ", LAYOUT", [CLASS_RUN] = ""};

static void aliases(const Arg *row, Str *out) {
    const char *s = row->names + arg_name_len(row);
    while (*s) {
        s++;
        s += *s == '~';
        size_t n = strcspn(s, "|"), name = strcspn(s, "|=");
        str_printf(out, " Also `--%.*s`", (int)name, s);
        if (name < n) str_printf(out, " for `%.*s`", (int)(n - name - 1), s + name + 1);
        str_puts(out, ".");
        s += n;
    }
}

static void range(ConfigRange r, Str *out) {
    if (r.low == r.high || r.high >= UINT16_MAX) return; /* not a number, or an unlimited or wide range */
    str_printf(out, ", %.16g..%.16g", r.low, r.high);
}

static void option(int i, Str *out) {
    static const char NEW[] = " (not in Megatron-LM)";
    const Arg *row = &CONFIG_ROWS[i];
    const bool takes_value = row->type != ARG_FLAG && row->type != ARG_OFF;
    const char *new = strstr(row->help, NEW);
    Str value = {0}, facts = {0};
    arg_metavar(row, &value);
    str_printf(out, "- `--%.*s%s%.*s`", (int)arg_name_len(row), row->names, takes_value ? " " : "",
               takes_value ? (int)value.len : 0, value.s);
    str_printf(&facts, "%s%s", CLASS_FACT[config_option_class(i)], new ? ", new" : "");
    if (takes_value && strcmp(row->fallback, "none") != 0) str_printf(&facts, ", default %s", row->fallback);
    range(config_range(i), &facts);
    if (facts.len) str_printf(out, " (%s)", facts.s + strlen(", "));
    str_printf(out, ": %.*s%s", new ? (int)(new - row->help) : (int)strlen(row->help), row->help,
               new ? new + strlen(NEW) : "");
    aliases(row, out);
    str_puts(out, "\n");
    str_free(&value);
    str_free(&facts);
}

/* Appends a list entry "`--a`, `--b N`: reason" for each reason in megatron.def and rules.def. */
static void foreign(const ArgTable *t, ForeignKind kind, bool values, Str *out) {
    for (int64_t i = 0; i < t->num_foreign; i++) {
        const Foreign *row = &t->foreign[i];
        if (row->kind != kind || values != (row->option != NULL)) continue;
        str_puts(out, "- ");
        for (const char *s = row->words; *s;) {
            const size_t n = strcspn(s, " "), name = values ? n : strcspn(s, "=+ ");
            str_printf(out, "`%s%.*s%s%.*s`", values ? "" : "--", (int)name, s, n > name + 1 ? " " : "",
                       n > name + 1 ? (int)(n - name - 1) : 0, s + name + (n > name));
            s += n + strspn(s + n, " ");
            if (*s) str_puts(out, ", ");
        }
        if (values && row->ours && *row->ours)
            str_printf(out, " of `--%s` (read as `%s`)", row->option, row->ours);
        else if (values)
            str_printf(out, " of `--%s`", row->option);
        str_printf(out, ": %s\n", row->reason);
    }
}

static void megatron(Str *out) {
    Config c;
    const ArgTable t = config_table(&c, 0);
    str_puts(
        out,
        "\n## Megatron-LM's other options\n\n"
        "Isotron accepts Megatron-LM's other options with a note, or refuses them, as listed here.\nIf an "
        "option is repeated, the last value is used, as in argparse. Contradictory flags are an "
        "error.\n\n"
        "These options are accepted with a note, because they would not change results:\n\n");
    foreign(&t, FOREIGN_NOTED, false, out);
    foreign(&t, FOREIGN_NOTED, true, out);
    str_puts(out, "\nThese options are not supported; using one is an error:\n\n");
    foreign(&t, FOREIGN_REFUSED, false, out);
    foreign(&t, FOREIGN_REFUSED, true, out);
}

void config_options_md(Str *out) {
    str_puts(
        out,
        "# Options\n\n"
        "`isotron docs` prints this page from `src/config/options.def` and `megatron.def`; `tools/gen_docs` "
        "adds the options of single commands.\n\n"
        "If Megatron-LM has an option, Isotron uses the same name, meaning and, unless the entry states "
        "otherwise, default.\nOn the command line, an option is `--name value`.\nIn a file for `--config`, "
        "an option is a line `name = value`, and a flag is `name = true`; the command line overrides the "
        "file.\n\n"
        "`isotron COMMAND --help` lists the options that a command reads. On the command line, any other "
        "option is an error.\nIn a file, other options are ignored, so that commands can share a file.\n\n"
        "Parentheses contain an option's class, default and, if narrow, range. `new` marks options that "
        "Megatron-LM does not have.\n"
        "In the text, `none` means that the option is not given. ARCH options change the model's function or "
        "shapes, and are stored in checkpoints.\nNUMERIC options change only rounding. LAYOUT options change "
        "only how the work is distributed. Options without a class change neither.\n");
    for (int i = 0; i < OPTIONS; i++) {
        if (CONFIG_ROWS[i].type == ARG_GROUP)
            str_printf(out, "\n## %s\n\n", CONFIG_ROWS[i].names);
        else
            option(i, out);
    }
    megatron(out);
}
