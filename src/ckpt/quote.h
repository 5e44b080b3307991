/* Foreign names (of tensors, files, parts) inside a sentence: in quotes, short, printable. */
#ifndef ISOTRON_CKPT_QUOTE_H
#define ISOTRON_CKPT_QUOTE_H

typedef struct Quoted {
    char s[256]; /* as an argument: quote(name).s lives until the end of the full expression */
} Quoted;

Quoted quote(const char *name);

#endif
