#include "tokenizer/text/field.h"

#include <string.h>

#include "base/json_text.h"
#include "base/text.h"
#include "tokenizer/text/serde_number.h"

Err json_file(const char *path, json_t **out) {
    Str text = {0};
    Err e = text_read(path, &text);
    if (!e.code) e = text_check_pointer(path, text.s, text.len);
    if (!e.code) {
        json_error_t why;
        serde_numbers(&text), json_text_numbers(&text);
        *out = json_loadb(text.s, text.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
        if (!*out && json_error_code(&why) == json_error_stack_overflow)
            e = err_user("'%s' is nested too deeply for a tokenizer file; download it again", path);
        else if (!*out)
            e = err_user("'%s' is not valid JSON: line %d: %s", path, why.line, why.text);
    }
    str_free(&text);
    return e;
}

static const json_t *value(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

static Err wrong(const char *where, const char *key, const char *type) {
    return err_user("%s.%s must be %s", where, key, type);
}

Err field_bool(const json_t *object, const char *where, const char *key, bool fallback, bool *out) {
    const json_t *v = value(object, key);
    *out = v ? json_is_true(v) : fallback;
    return v && !json_is_boolean(v) ? wrong(where, key, "true or false") : ERR_OK;
}

Err field_int(const json_t *object, const char *where, const char *key, int64_t *out) {
    const json_t *v = value(object, key);
    *out = json_integer_value(v);
    return json_is_integer(v) ? ERR_OK : wrong(where, key, "an integer");
}

Err field_text(const json_t *object, const char *where, const char *key, const char **out, size_t *n) {
    const json_t *v = value(object, key);
    if (!json_is_string(v)) return wrong(where, key, "a string");
    *out = json_string_value(v);
    if (n)
        *n = json_string_length(v);
    else if (strlen(*out) != json_string_length(v))
        return wrong(where, key, "a string without a NUL");
    return ERR_OK;
}

Err field_object(const json_t *object, const char *where, const char *key, const json_t **out) {
    *out = value(object, key);
    return *out && !json_is_object(*out) ? wrong(where, key, "an object") : ERR_OK;
}

Err field_array(const json_t *object, const char *where, const char *key, const json_t **out) {
    *out = value(object, key);
    return *out && !json_is_array(*out) ? wrong(where, key, "a list") : ERR_OK;
}
