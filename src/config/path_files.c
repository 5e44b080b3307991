/* Reads the files that --data-args-path and --per-split-data-args-path name, as Megatron-LM does. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "config/config.h"

/* Appends the words of a text. */
static void add_words(TextList *out, const char *text, int64_t most, Arena *arena) {
    for (size_t n;
         text += strspn(text, " \t\r\n\f\v"), n = strcspn(text, " \t\r\n\f\v"), n && out->count < most;
         text += n)
        out->at[out->count++] = arena_printf(arena, "%.*s", (int)n, text);
}

static TextList words_of(const char *text, Arena *arena) {
    const int64_t most = (int64_t)strlen(text) / 2 + 1;
    TextList list = {arena_alloc(arena, (size_t)most * sizeof *list.at), 0};
    add_words(&list, text, most, arena);
    return list;
}

/* Returns a text or a number as text, or NULL for other values. */
static const char *value_of(const json_t *item, Arena *arena) {
    char *number = json_is_number(item) ? json_dumps(item, JSON_ENCODE_ANY) : NULL;
    const char *value = number ? number : json_string_value(item);
    value = value ? arena_printf(arena, "%s", value) : NULL;
    free(number);
    return value;
}

/* Reads the paths of a split: a text, a list of texts and numbers, or null. Returns false if it is none of these. */
static bool read_split(const json_t *value, TextList *out, Arena *arena) {
    if (json_is_string(value)) *out = words_of(json_string_value(value), arena);
    if (json_is_string(value) || json_is_null(value)) return true;
    *out = (TextList){arena_alloc(arena, (json_array_size(value) + 1) * sizeof *out->at), 0};
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *word = value_of(json_array_get(value, i), arena);
        if (!word) return false;
        out->at[out->count++] = word;
    }
    return json_is_array(value);
}

static void read_splits(Config *c, const char *text, size_t n, Args *args) {
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    if (!read_split(json_object_get(root, "train"), &c->train_data_path, args->arena) ||
        !read_split(json_object_get(root, "valid"), &c->valid_data_path, args->arena) ||
        !read_split(json_object_get(root, "test"), &c->test_data_path, args->arena))
        args_problem(
            args,
            "'%s' is not a JSON object whose keys train, valid and test are paths. Write the values of "
            "--train-data-path, --valid-data-path and --test-data-path, or null.",
            c->per_split_data_args_path);
    json_decref(root);
}

static bool read_file(const char *path, Str *text, Args *args) {
    const Err e = path ? file_read_stream(path, text) : ERR_OK;
    if (e.code) args_problem(args, "%s", e.msg);
    return path && !e.code;
}

void config_read_paths(Config *c, Args *args) {
    Str one = {0}, each = {0};
    if (read_file(c->data_args_path, &one, args)) {
        c->data_path = words_of(one.len ? one.s : "", args->arena);
        if (!c->data_path.count || memchr(one.s, 0, one.len))
            args_problem(args,
                         "'%s' is not a text file with paths of datasets. Write the value of --data-path.",
                         c->data_args_path);
    }
    if (read_file(c->per_split_data_args_path, &each, args)) read_splits(c, each.s, each.len, args);
    str_free(&one), str_free(&each);
}
