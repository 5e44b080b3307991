/* Input files as streams of text: plain, gzip (RFC 1952) or Zstandard (RFC 8878), told by their first bytes; "-"
 * is standard input. A file may consist of several compressed parts. */
#ifndef ISOTRON_DATA_INPUT_H
#define ISOTRON_DATA_INPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

typedef struct Input Input;

bool input_is_stdin(const char *path);
/* A user error for a folder, a file that cannot be opened, and formats that cannot be read. */
Err input_open(const char *path, Input **out);
FILE *input_text(Input *);          /* uncompressed; closed by input_close */
int64_t input_bytes(const Input *); /* of the file, read so far */
/* An error if reading failed: damaged or truncated compressed data, or the system's. Frees the input. */
Err input_close(Input *);

#endif
