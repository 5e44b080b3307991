/* Template values, and the operations that Python defines for them. */
#pragma once

#include <jansson.h>

#include "chat/machine.h"

typedef enum ValueType {
    VALUE_MISSING, /* an argument that was not given */
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT, /* larger integers are an error */
    VALUE_FLOAT,
    VALUE_STRING,
    /* a string after the filter `safe` or `escape`; such a string can only be printed and concatenated with
     * ~ */
    VALUE_MARKUP,
    VALUE_LIST,
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_LOOP,
    VALUE_CALLABLE
} ValueType;

typedef enum ListKind {
    KIND_LIST,
    KIND_TUPLE,
    KIND_RANGE,
    KIND_VIEW,    /* dict.keys(), .values(), .items() */
    KIND_ITERATOR /* the result of a filter such as map; can be read only once, and has no length */
} ListKind;

typedef struct Value {
    ValueType type;
    /* for an undefined attribute: the type that lacks the attribute; for an undefined variable:
     * VALUE_MISSING */
    ValueType of;
    size_t n; /* bytes in a string, or in an undefined value's name */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s; /* UTF-8, not NUL-terminated */
        struct List *list;
        struct Dict *dict; /* a dict, or the attributes of a namespace */
        struct Loop *loop;
        const struct Callable *callable;
    };
} Value;

typedef struct List {
    Value *at;
    size_t n, cap;
    ListKind kind;
    size_t read; /* number of items read from an iterator */
} List;

typedef struct Pair {
    Value key, value;
} Pair;

typedef struct Dict {
    Pair *at;
    size_t n, cap;
} Dict;

/* ---- construction; after an error, the result is undefined ---- */

static inline Value value_none(void) { return (Value){.type = VALUE_NONE}; }
static inline Value value_bool(bool b) { return (Value){.type = VALUE_BOOL, .b = b}; }
static inline Value value_int(int64_t i) { return (Value){.type = VALUE_INT, .i = i}; }
static inline Value value_float(double f) { return (Value){.type = VALUE_FLOAT, .f = f}; }
/* Returns a string value that borrows the text. */
static inline Value value_view(const char *s, size_t n) {
    return (Value){.type = VALUE_STRING, .s = s, .n = n};
}
/* Returns the value of an undefined variable or attribute with this name. */
static inline Value value_undefined(ValueType of, const char *name, size_t n) {
    return (Value){.type = VALUE_UNDEFINED, .of = of, .s = name, .n = n};
}
#define UNDEFINED value_undefined(VALUE_MISSING, "", 0)
Value value_string(Machine *, const char *s, size_t n);
/* Copies the text into the machine's memory, and frees the Str. */
Value value_take(Machine *, Str *);
/* Concatenates two strings. */
Value value_join(Machine *, Value a, Value b);
Value value_list(Machine *, ListKind);
void list_push(Machine *, List *, Value);
Value value_dict(Machine *);
void dict_set(Machine *, Dict *, Value key, Value);
/* Returns a key's value, or NULL if the key does not exist. */
const Value *dict_get(Machine *, const Dict *, Value key);
const Value *dict_get_text(Machine *, const Dict *, const char *key, size_t n);
Value value_of_json(Machine *, const json_t *);

/* ---- operations ---- */

bool value_is(Value, const char *text); /* whether the value is this string */
static inline bool value_is_list(Value v, ListKind kind) {
    return v.type == VALUE_LIST && v.list->kind == kind;
}
bool value_is_number(Value); /* whether the value is a bool, int or float */
double value_number(Value);
const char *value_type_name(Value); /* the type's name with an article, for messages */
Quoted value_quote(Value);          /* the quoted string, for messages */
/* value_is_int returns whether Python treats the value as an integer, and value_whole returns the integer. */
static inline bool value_is_int(Value v) { return v.type == VALUE_INT || v.type == VALUE_BOOL; }
static inline int64_t value_whole(Value v) { return v.type == VALUE_BOOL ? v.b : v.i; }
/* Returns an integer argument, or the fallback if the argument is none or missing. `needs`, such as "range needs
 * integers", begins the error message for any other type. */
int64_t value_integer(Machine *, Value, int64_t fallback, const char *needs);
/* Reports the use of an undefined value. */
void value_fail_undefined(Machine *, Value);
/* Reports a value of the wrong type with a message such as "range needs integers, not a list". */
void value_fail_type(Machine *, Value, const char *needs);
bool value_true(Value);
bool value_equal(Machine *, Value, Value);
/* Compares two values, and returns < 0, 0 or > 0. It is an error if Python cannot compare the values. */
int value_order(Machine *, Value, Value);
bool value_contains(Machine *, Value container, Value item);
/* Returns the items as a list. The caller must not change the list. Reads an iterator to its end. */
const List *value_items(Machine *, Value);
/* Returns the result of len(), which counts characters if the value is a string. */
int64_t value_length(Machine *, Value);

/* ---- text (value_text.c) ---- */

void value_print(Machine *, Value, Str *);  /* appends the result of str() */
void value_repr(Machine *, Value, Str *);   /* appends the result of repr() */
Value value_text(Machine *, Value);         /* returns the result of str() */
void value_escape(Machine *, Value, Str *); /* appends the result of str() with & < > " ' escaped for HTML */
typedef struct JsonForm {
    bool ascii, sorted;
    Value indent; /* none, a number of spaces, or a string */
    Value comma, colon;
} JsonForm;
void value_json(Machine *, Value, const JsonForm *, int depth, Str *);
