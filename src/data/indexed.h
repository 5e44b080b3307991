/* Megatron-LM's IndexedDataset (megatron/core/datasets/indexed_dataset.py), byte for byte: `<prefix>.bin`
 * holds the tokens of all sequences back to back, `<prefix>.idx` says where they are. All little-endian, no
 * padding:
 *
 *   offset  type     content
 *   0       u8[9]    "MMIDIDX\0\0"
 *   9       u64      version, 1
 *   17      u8       dtype code (IndexedDtype)
 *   18      u64      S, sequences
 *   26      u64      D, entries of the document index = documents + 1
 *   34      i32[S]   sequence lengths in tokens
 *           i64[S]   byte offset of each sequence in .bin
 *           i64[D]   first sequence of each document; entry 0 is 0, the last is S
 *           i8[S]    modes, multimodal data only
 *
 * A document is a run of sequences (sentences, or one for plain GPT data); an empty document is two equal
 * entries. */
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

size_t indexed_dtype_size(IndexedDtype); /* bytes of one item, 0 for an unknown code */
const char *indexed_dtype_name(IndexedDtype);
bool indexed_dtype_is_float(IndexedDtype);
/* The dtype that preprocessing writes: u16 below 65500 ids, else i32; i32 if the vocabulary size is unknown
 * (<= 0). */
IndexedDtype indexed_dtype_for_vocab(int64_t vocab_size);

/* A mapped dataset; read-only, so any number of threads may share it. Opening checks every length, offset and
 * document entry against the sizes of the two files, so no later read can leave the map. */
typedef struct IndexedDataset {
    char *prefix; /* owned */
    FileMap idx, bin;
    IndexedDtype dtype;
    int64_t sequences;                               /* S */
    int64_t documents;                               /* D - 1 */
    const unsigned char *lengths, *offsets, *starts; /* inside idx, unaligned: use the functions below */
    const int8_t *modes;                             /* [S], NULL if the data has none */
} IndexedDataset;

Err indexed_open(const char *prefix, IndexedDataset *out);
void indexed_close(IndexedDataset *);

int32_t indexed_length(const IndexedDataset *, int64_t sequence); /* tokens */
/* First sequence of `document`; for document == documents, the number of sequences. */
int64_t indexed_document(const IndexedDataset *, int64_t document);
/* Items [begin, begin + count) of a sequence, in the file's dtype and alignment. */
const void *indexed_items(const IndexedDataset *, int64_t sequence, int64_t begin, int64_t count);
/* indexed_items as int64 token ids; the dtype must be an integer one. */
void indexed_tokens(const IndexedDataset *, int64_t sequence, int64_t begin, int64_t count, int64_t *out);

/* Writes a dataset. Both files have temporary names until indexed_builder_finalize renames them, the .idx
 * last: a reader never sees half a dataset. The dataset has modes if any sequence has one. */
typedef struct IndexedBuilder IndexedBuilder;

Err indexed_builder_open(const char *prefix, IndexedDtype, IndexedBuilder **out);
/* One sequence of `count` items in the builder's dtype. */
Err indexed_builder_add(IndexedBuilder *, const void *items, int64_t count);
/* One sequence of token ids; a user error if an id does not fit the builder's dtype. */
Err indexed_builder_add_tokens(IndexedBuilder *, const int32_t *tokens, int64_t count);
/* Sets the mode of the last sequence; the default is 0. */
void indexed_builder_set_mode(IndexedBuilder *, int8_t mode);
void indexed_builder_end_document(IndexedBuilder *);
/* Appends all sequences, documents and modes of another dataset of the same dtype. */
Err indexed_builder_add_index(IndexedBuilder *, const char *prefix);
/* Appends all that another builder of the same dtype and without modes has, and frees it, also after an error. */
Err indexed_builder_take(IndexedBuilder *, IndexedBuilder *from);
/* Makes the files durable under their final names. Frees the builder, also after an error. */
Err indexed_builder_finalize(IndexedBuilder *);
/* Removes the files. NULL is fine. */
void indexed_builder_abort(IndexedBuilder *);
/* The same for the files only, from another thread just before the process ends. NULL is fine. */
void indexed_builder_unlink(const IndexedBuilder *);
/* A dataset that exists is a user error, unless it is to be overwritten. */
Err indexed_check_target(const char *prefix, bool overwrite);
/* Whether the path leads to the .bin or .idx file of the dataset, existing or not. */
bool indexed_is_part(const char *prefix, const char *path);

/* Merges datasets in the sorted order of their prefixes, as Megatron-LM's tools/merge_datasets.py does. */
Err data_merge(const char *const *prefixes, int n, const char *output_prefix);
/* Merges every .bin/.idx pair of a folder; a .bin without its .idx, or the reverse, is a user error. */
Err data_merge_folder(const char *folder, const char *output_prefix);
