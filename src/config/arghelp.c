/* The text of --help. */
#include "config/args.h"

#include <string.h>

static void option(const Arg *row, Str *out) {
    int name_len = (int)arg_name_len(row);
    str_printf(out, "  --%.*s", name_len, row->names);
    bool takes_value = row->type != ARG_FLAG && row->type != ARG_OFF;
    if (takes_value) str_puts(out, " ");
    arg_metavar(row, out);
    str_printf(out, "\n        %s", row->help);
    if (row->required)
        str_puts(out, " Required.");
    else if (takes_value)
        str_printf(out, " Default: %s.", row->fallback);
    if (row->names[name_len]) {
        str_puts(out, " Also:");
        for (const char *s = row->names + name_len; *s; s += 1 + strcspn(s + 1, "|")) {
            s += s[1] == '~';
            const char *end = s + 1 + strcspn(s + 1, "=|");
            str_printf(out, " --%.*s", (int)(end - s - 1), s + 1);
            if (*end == '=' && !takes_value)
                str_printf(out, " for %.*s", (int)strcspn(end + 1, "|"), end + 1);
        }
        str_puts(out, ".");
    }
    str_puts(out, "\n");
}

void args_help(const Args *a, Str *out) {
    str_printf(
        out,
        "usage: %s\n\n  --config FILE\n        Read options from a file of `name = value` lines first.\n",
        a->usage);
    for (int t = 0; t < a->num_tables; t++) {
        const ArgTable *table = &a->tables[t];
        int group = -1;
        for (int64_t i = 0; i < table->count; i++) {
            const Arg *row = &table->rows[i];
            group += row->type == ARG_GROUP;
            if (group >= 0 && !(table->accepted >> group & 1)) continue;
            if (row->type == ARG_GROUP)
                str_printf(out, "\n%s\n", row->names);
            else
                option(row, out);
        }
    }
}
