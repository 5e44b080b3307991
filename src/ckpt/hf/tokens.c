#include "ckpt/hf/tokens.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/json_text.h"
#include "base/mem.h"

static bool is_token(const json_t *v, int64_t vocab_size) {
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < vocab_size;
}

static bool is_usable(const json_t *v, int64_t vocab_size) {
    const size_t n = json_array_size(v);
    size_t good = 0;
    while (good < n && is_token(json_array_get(v, good), vocab_size)) good++;
    return is_token(v, vocab_size) || (n > 0 && good == n);
}

void hf_tokens_take(json_t *tokens, const json_t *from, const char *where, int64_t vocab_size, Str *notes) {
    static const char *const KEYS[] = {"bos_token_id", "eos_token_id", "pad_token_id",
                                       "decoder_start_token_id"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        json_t *v = json_object_get(from, KEYS[i]);
        if (!v || json_is_null(v) || json_object_get(tokens, KEYS[i])) continue;
        if (is_usable(v, vocab_size)) {
            json_object_set(tokens, KEYS[i], v);
        } else {
            char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
            str_printf(notes,
                       "note: %s is %s in %s, but this model has no such token, so the key is omitted\n",
                       KEYS[i], quote_json(text).s, where);
            free(text);
        }
    }
}

static Err take_from_file(json_t *tokens, const char *path, int64_t vocab_size, Str *notes) {
    Str text = {0};
    json_error_t where;
    Err e = file_read(path, &text);
    json_text_numbers(&text);
    json_t *root = e.code ? NULL : json_loadb(text.s, text.len, JSON_REJECT_DUPLICATES, &where);
    if (!e.code && !json_is_object(root)) e = err_user("'%s' is not a JSON object; download it again", path);
    char *name = mem_printf("'%s'", path);
    if (!e.code) hf_tokens_take(tokens, root, name, vocab_size, notes);
    hf_tokens_take(tokens, json_object_get(root, "text_config"), name, vocab_size, notes);
    free(name);
    json_decref(root);
    str_free(&text);
    return e;
}

Err hf_tokens_read(json_t *tokens, const char *dir, int64_t vocab_size, Str *notes) {
    char *generation = mem_printf("%s/generation_config.json", dir),
         *config = mem_printf("%s/config.json", dir);
    Err e = file_exists(generation) ? take_from_file(tokens, generation, vocab_size, notes) : ERR_OK;
    if (!e.code) e = take_from_file(tokens, config, vocab_size, notes);
    free(generation), free(config);
    return e;
}
