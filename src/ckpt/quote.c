#include "ckpt/quote.h"

#include <stdio.h>
#include <string.h>

#include "config/args.h"

Quoted quote(const char *name) {
    Str text = {0};
    Quoted q;
    arg_quote(&text, name, strlen(name));
    snprintf(q.s, sizeof q.s, "%s", text.s);
    str_free(&text);
    return q;
}
