/* A kind of dataset is a DatasetKind: the fields that its samples fill, and how one split of one source becomes
 * samples by number. Blends, splits, caches and batches are the same for all kinds. Source: Megatron-LM
 * core/datasets/megatron_dataset.py.
 *
 * Indices that are slow to build are cached in files that Megatron-LM and Isotron share: a description, whose
 * MD5 names them, and one .npy file for each array. */
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

/* The data that the options describe. Datasets read data.c's copy, which lives as long as they do. */
typedef struct DataConfig {
    DatasetId kind;
    /* --data-path, as blend_parse reads it: all splits come from these datasets, divided by `split`. */
    const char *const *paths;
    int num_paths;
    /* As the user wrote it; NULL: "969, 30, 1". Datasets see NULL if each split has its own data. */
    const char *split;
    const SplitRange *ranges; /* of the splits, for datasets: [SPLIT_COUNT]; NULL if split is NULL */
    /* --train-data-path, --valid-data-path, --test-data-path: each split has its own datasets. A kind that reads
     * records has the files of training and validation here, borrowed. */
    const char *const *split_paths[SPLIT_COUNT];
    int num_split_paths[SPLIT_COUNT];
    bool mock;                    /* --mock-data: no paths, split "1,1,1" */
    int64_t samples[SPLIT_COUNT]; /* number in the whole run; < 0: one epoch; 0: the split is not opened */
    int64_t sequence_length;      /* s */
    /* An id outside [0, vocab_size) is a user error; 0: not checked. Mock data needs it. */
    int64_t vocab_size;
    int64_t eod, pad; /* -1: none */
    uint32_t seed;
    bool eod_mask_loss, reset_position_ids, reset_attention_mask;
    bool allow_ambiguous_pad; /* off: a pad id equal to eod counts as -1, so that eod tokens are not masked */
    bool keep_last_partial_validation; /* upstream's drop_last_partial_validation_sequence off */
    const void *kind_config;           /* [DatasetKind.config_size]: copied, but not what it points to */
    double surplus;                    /* --mid-level-dataset-surplus; 0.005 upstream */
    /* --data-cache-path, the index cache. NULL: <prefix>/cache/<class>_indices, no cache for mock data and blends. If
     * ranks share a folder, one must build before the others start. */
    const char *cache_dir;
    bool read_only; /* missing caches are built in memory; only whether they could be written is checked */
    /* the tokenizer's identifiers, an object of strings and numbers, part of the cache's file names; NULL: null */
    const char *tokenizer_json;
} DataConfig;

typedef struct DatasetKind DatasetKind;

/* One split of one source. A kind's struct begins with it. */
typedef struct DatasetPart {
    const DatasetKind *kind;
    const TokenSource *source; /* borrowed */
    const DataConfig *config;  /* borrowed */
    DataSplit split;
    int64_t begin, end;  /* elements of the source: sequences, or documents */
    int64_t num_samples; /* number requested; < 0: one epoch */
    /* Borrowed, of a kind that reads records; it has no source, and sets num_samples to their number. */
    const char *const *files;
    int num_files;
    /* Set by part_open. Positions are the sequence length, unless the kind's open changes it. */
    SampleShape shape;
    /* Set by the kind's open: */
    int64_t samples; /* >= num_samples */
    int64_t epoch;   /* samples of an epoch of records; else 0 */
    int64_t tokens;  /* of the split */
    double epochs;   /* that num_samples are; 0 for one epoch */
} DatasetPart;

struct DatasetKind {
    const char *class_name; /* Megatron-LM's */
    size_t size;            /* of the kind's struct */
    size_t config_size;     /* of the kind's configuration, DataConfig.kind_config; 0: none */
    FieldSet fields;        /* that a sample can fill */
    MockShape mock;
    bool by_document;               /* splits divide documents, not sequences */
    bool split_in_names;            /* of cache files */
    const char *const *array_names; /* of cached arrays, NULL-terminated */
    Err (*open)(DatasetPart *);     /* part->kind .. num_samples are set */
    void (*close)(DatasetPart *);   /* what open allocated, also after its error */
    /* Fills the fields that are not NULL. They have the values of batch_reset before. */
    Err (*get)(const DatasetPart *, int64_t, Sample *);
    /* Adds the description's members after the common ones. */
    void (*describe)(const DatasetPart *, json_t *members); /* NULL: none */
    /* Adds records to the fingerprint of the data. NULL: the kind reads tokens of a source. */
    void (*hash)(const DatasetPart *, HashStream *);
};

static inline bool kind_reads_records(const DatasetKind *k) { return k->hash; }

const DatasetKind *dataset_kind(DatasetId);

/* request: the fields that neither part_open nor the kind's open sets */
Err part_open(const DatasetPart *request, DatasetPart **out);
void part_close(DatasetPart *); /* NULL is fine */
/* Sample k of [0, samples). A user error if an id is outside the vocabulary. Any thread may call. */
Err part_get(const DatasetPart *, int64_t k, Sample *out);

/* Maps a part's arrays from the cache if it has all of them and `valid` accepts them; otherwise builds and saves
 * them. A damaged cache is rebuilt. arrays: in the order of array_names. */
Err part_index(DatasetPart *, NpyArray *const *arrays, bool (*valid)(const DatasetPart *),
               Err (*build)(DatasetPart *));

/* Upstream's unique description, the JSON object whose MD5 names the cache. */
Err part_describe(const DatasetPart *, json_t **out);
/* Its text as upstream prints it, and its MD5. Frees the object. */
void description_print(json_t *, Str *text, char md5[33]);
/* <dir>/<md5 of description>-<name>-<what> (owned by the caller) */
char *cache_path(const char *dir, const char *md5, const char *name, const char *what);
/* Whether the content of the description file is exactly this text. */
bool cache_describes(const char *path, const Str *description);

/* For the kinds. A user error, prefixed with the split and the source: */
Err part_error(const DatasetPart *, Err);
/* A user error that names the source if an id is outside [0, vocab_size); vocab_size <= 0: unknown. */
Err part_check_id(const DatasetPart *, int64_t id, int64_t vocab_size);
