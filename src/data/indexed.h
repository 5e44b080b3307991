/* The file format of Megatron-LM's IndexedDataset (megatron/core/datasets/indexed_dataset.py). `<prefix>.bin`
 * contains the tokens of all sequences consecutively. `<prefix>.idx` contains the lengths and offsets of the
 * sequences, in little-endian order and without padding:
 *
 *   offset  type     content
 *   0       u8[9]    "MMIDIDX\0\0"
 *   9       u64      version, 1
 *   17      u8       dtype code (IndexedDtype)
 *   18      u64      S, number of sequences
 *   26      u64      D, number of entries of the document index = documents + 1
 *   34      i32[S]   sequence lengths in tokens
 *           i64[S]   byte offset of each sequence in .bin
 *           i64[D]   first sequence of each document; the first entry is 0, the last is S
 *           i8[S]    modes, multimodal data only
 *
 * A document consists of consecutive sequences: its sentences, or one sequence in plain GPT data. An empty document's
 * entry equals the next entry. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/file.h"

typedef enum IndexedDtype {
    INDEXED_U8 = 1,
    INDEXED_I8,
    INDEXED_I16,
    INDEXED_I32,
    INDEXED_I64,
    INDEXED_F64,
    INDEXED_F32,
    INDEXED_U16
} IndexedDtype;

size_t indexed_dtype_size(IndexedDtype); /* number of bytes per item, or 0 for an unknown code */
const char *indexed_dtype_name(IndexedDtype);
bool indexed_dtype_is_float(IndexedDtype);
/* Returns the dtype that preprocessing writes: u16 if the vocabulary has fewer than 65500 tokens, and i32 if it has
 * more or its size is unknown (<= 0). */
IndexedDtype indexed_dtype_for_vocab(int64_t vocab_size);

/* A mapped dataset. An IndexedDataset is read-only, so any number of threads may share it. indexed_open
 * checks every length, offset and document entry against the sizes of the two files, so that later reads stay
 * within the mapped files. */
typedef struct IndexedDataset {
    char *prefix; /* owned */
    FileMap idx, bin;
    IndexedDtype dtype;
    int64_t sequences; /* S */
    int64_t documents; /* D - 1 */
    /* unaligned arrays in idx; the functions below read them */
    const unsigned char *lengths, *offsets, *starts;
    const int8_t *modes; /* [S]; NULL if the data has no modes */
} IndexedDataset;

Err indexed_open(const char *prefix, IndexedDataset *out);
void indexed_close(IndexedDataset *);

int32_t indexed_length(const IndexedDataset *, int64_t sequence); /* number of tokens */
/* Returns the first sequence of `document`. For document == documents, returns the number of sequences. */
int64_t indexed_document(const IndexedDataset *, int64_t document);
/* Returns items [begin, begin + count) of a sequence, in the file's dtype. The items may be unaligned. */
const void *indexed_items(const IndexedDataset *, int64_t sequence, int64_t begin, int64_t count);
/* Converts items to int64 token ids. The dtype must be an integer type. */
void indexed_tokens(const IndexedDataset *, int64_t sequence, int64_t begin, int64_t count, int64_t *out);

/* Writes a dataset. Both files have temporary names until indexed_builder_finalize renames them. The .idx is
 * renamed last, so that a reader never finds an incomplete dataset. The dataset has modes if the mode of any
 * sequence was set. */
typedef struct IndexedBuilder IndexedBuilder;

Err indexed_builder_open(const char *prefix, IndexedDtype, IndexedBuilder **out);
/* Appends a sequence of `count` items, which have the builder's dtype. */
Err indexed_builder_add(IndexedBuilder *, const void *items, int64_t count);
/* Appends a sequence of token ids. An id that does not fit into the builder's dtype is a user error. */
Err indexed_builder_add_tokens(IndexedBuilder *, const int32_t *tokens, int64_t count);
/* Sets the last sequence's mode; the default is 0. */
void indexed_builder_set_mode(IndexedBuilder *, int8_t mode);
void indexed_builder_end_document(IndexedBuilder *);
/* Appends all sequences, documents and modes of another dataset that has the same dtype. */
Err indexed_builder_add_index(IndexedBuilder *, const char *prefix);
/* Appends the content of another builder, which must have the same dtype and no modes. Frees the other builder, even
 * after an error. */
Err indexed_builder_take(IndexedBuilder *, IndexedBuilder *from);
/* Renames the files to their final names, and makes them durable. Frees the builder, even after an error. */
Err indexed_builder_finalize(IndexedBuilder *);
/* Removes the temporary files and frees the builder. NULL is fine. */
void indexed_builder_abort(IndexedBuilder *);
/* Removes only the temporary files and frees no memory, so another thread may call this function just before the
 * process ends. NULL is fine. */
void indexed_builder_unlink(const IndexedBuilder *);
/* Returns a user error if the dataset exists, unless `overwrite` is true. */
Err indexed_check_target(const char *prefix, bool overwrite);
/* Returns whether the path names the dataset's .bin or .idx file. The file need not exist. */
bool indexed_is_part(const char *prefix, const char *path);

/* Merges datasets in the order of their sorted prefixes, as Megatron-LM's tools/merge_datasets.py does. */
Err data_merge(const char *const *prefixes, int n, const char *output_prefix);
/* Merges every .bin/.idx pair in a folder. A .bin without its .idx, or an .idx without its .bin, is a user error. */
Err data_merge_folder(const char *folder, const char *output_prefix);
