/* A DatasetKind describes a kind of dataset: which fields its samples fill, and how to read a sample from one split of
 * one source. All kinds share the code for blends, splits, caches and batches. Source: Megatron-LM
 * core/datasets/megatron_dataset.py.
 *
 * Indices that are slow to build are cached in files that Megatron-LM and Isotron share. A cache consists of a
 * description file and one .npy file for each array. The description's MD5 is part of the file names. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/str.h"
#include "data/batch.h"
#include "data/blend.h"
#include "data/npy.h"
#include "data/source.h"

typedef enum DatasetId {
#define DATASET(name) DATASET_##name,
#include "data/datasets.def"
#undef DATASET
    DATASETS
} DatasetId;

/* The data that the options describe. Datasets read a copy of this struct, which data.c keeps until all
 * datasets are closed. */
typedef struct DataConfig {
    DatasetId kind;
    /* --data-path, in blend_parse's format. `split` divides these datasets into train, valid and test. */
    const char *const *paths;
    int num_paths;
    /* --split as the user wrote it; NULL means "969, 30, 1". In the copy that datasets read, NULL means that
     * each split has separate data. */
    const char *split;
    const SplitRange *ranges; /* [SPLIT_COUNT]; set in the copy that datasets read; NULL if split is NULL */
    /* --train-data-path, --valid-data-path and --test-data-path: the paths of each split's separate datasets. For a
     * kind that reads records, these are the training and validation files (borrowed). */
    const char *const *split_paths[SPLIT_COUNT];
    int num_split_paths[SPLIT_COUNT];
    bool mock; /* --mock-data: no paths, and a split of "1,1,1" */
    /* The number of samples that the whole run draws from each split. A negative number means one epoch; 0
     * means that the split is not opened. */
    int64_t samples[SPLIT_COUNT];
    int64_t sequence_length; /* s */
    /* An id outside [0, vocab_size) is a user error; 0 disables this check. Mock data needs a vocab_size of
     * at least 1. */
    int64_t vocab_size;
    int64_t eod, pad; /* -1: none */
    uint32_t seed;
    bool eod_mask_loss, reset_position_ids, reset_attention_mask;
    /* Whether the pad id may equal eod. If it may not, -1 replaces such a pad id, so that eod tokens are not masked. */
    bool allow_ambiguous_pad;
    /* the opposite of Megatron-LM's drop_last_partial_validation_sequence */
    bool keep_last_partial_validation;
    const void *kind_config; /* [DatasetKind.config_size] bytes; data.c makes a shallow copy */
    double surplus;          /* --mid-level-dataset-surplus; Megatron-LM's default is 0.005 */
    /* --data-cache-path, the index cache's folder. NULL means <prefix>/cache/<class>_indices, or no cache for mock data
     * and blends. If ranks share a folder, one rank must build the cache before the others start. */
    const char *cache_dir;
    /* Whether missing indices are built only in memory and not saved. The cache folder must be writable even if this is
     * true. */
    bool read_only;
    /* The tokenizer's identifiers as a JSON object, which the hash in cache file names covers. NULL means the JSON
     * value null. */
    const char *tokenizer_json;
} DataConfig;

typedef struct DatasetKind DatasetKind;

/* One split of one source. Each kind's struct begins with a DatasetPart. */
typedef struct DatasetPart {
    const DatasetKind *kind;
    const TokenSource *source; /* borrowed */
    const DataConfig *config;  /* borrowed */
    DataSplit split;
    int64_t begin, end;  /* range of documents if by_document is set; otherwise, range of sequences */
    int64_t num_samples; /* number of samples requested; a negative number means one epoch */
    /* The files of a kind that reads records (borrowed). Such a kind has no source, and its `open` sets num_samples to
     * the number of records. */
    const char *const *files;
    int num_files;
    /* Set by part_open. `positions` is the sequence length, unless the kind's `open` changes it. */
    SampleShape shape;
    /* The kind's `open` sets the following members. */
    int64_t samples; /* >= num_samples */
    int64_t epoch;   /* for records: samples per epoch; 0 for token data */
    int64_t tokens;  /* number of tokens in the split */
    double epochs;   /* how many epochs are needed for num_samples, or 0 if one epoch was requested */
} DatasetPart;

struct DatasetKind {
    const char *class_name; /* the class name in Megatron-LM */
    size_t size;            /* the size of the kind's struct in bytes */
    size_t config_size;     /* size of DataConfig.kind_config, or 0 if the kind does not use it */
    FieldSet fields;        /* the fields that a sample can fill */
    MockShape mock;
    bool by_document;               /* whether splits divide documents instead of sequences */
    bool split_in_names;            /* whether cache file names contain the split */
    const char *const *array_names; /* file names of the cached arrays, NULL-terminated */
    Err (*open)(DatasetPart *);     /* called after the request's fields and the shape have been set */
    void (*close)(DatasetPart *);   /* frees what open has allocated; also called if open fails */
    /* Fills the fields that are not NULL. The caller has initialized these fields as batch_reset does. */
    Err (*get)(const DatasetPart *, int64_t, Sample *);
    /* Adds the kind's members to the description, after the common members. */
    void (*describe)(const DatasetPart *, json_t *members); /* may be NULL */
    /* Adds the records to the data's fingerprint. NULL if the kind reads tokens from a source. */
    void (*hash)(const DatasetPart *, HashStream *);
};

static inline bool kind_reads_records(const DatasetKind *k) { return k->hash; }

const DatasetKind *dataset_kind(DatasetId);

/* Opens a part. The caller must set all fields of `request` that neither part_open nor the kind's `open` sets. */
Err part_open(const DatasetPart *request, DatasetPart **out);
void part_close(DatasetPart *); /* NULL is fine */
/* Reads sample k, 0 <= k < samples. An id outside the vocabulary is a user error. Thread-safe. */
Err part_get(const DatasetPart *, int64_t k, Sample *out);

/* Maps a part's arrays from the cache if it has all of them and `valid` accepts them. Otherwise, builds the arrays, and
 * saves them unless read_only is set. A damaged cache is rebuilt. `arrays` must be in the order of array_names. */
Err part_index(DatasetPart *, NpyArray *const *arrays, bool (*valid)(const DatasetPart *),
               Err (*build)(DatasetPart *));

/* Sets *out to Megatron-LM's unique description, the JSON object whose MD5 is part of cache file names. */
Err part_describe(const DatasetPart *, json_t **out);
/* Prints a description as Megatron-LM does, and computes its MD5. Frees the description. */
void description_print(json_t *, Str *text, char md5[33]);
/* Returns <dir>/<md5>-<name>-<what>. The caller frees the string. */
char *cache_path(const char *dir, const char *md5, const char *name, const char *what);
/* Returns whether the file contains exactly this description. */
bool cache_describes(const char *path, const Str *description);

/* Prepends the split and the source to the error's message, and returns the error. Dataset kinds call this
 * function. */
Err part_error(const DatasetPart *, Err);
/* Returns a user error that names the source if an id is outside [0, vocab_size). A vocab_size <= 0 means
 * that the size is unknown, so ids are not checked. */
Err part_check_id(const DatasetPart *, int64_t id, int64_t vocab_size);
