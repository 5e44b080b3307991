/* Template tests, which follow the keyword `is`. */
#include <string.h>

#include <unicode/uchar.h>

#include "chat/call.h"
#include "chat/strings.h"

#define TEST_TYPE(name, condition)                                                                           \
    static Value name(Machine *m, const CallArgs *a) {                                                       \
        const Value v = a->at[0];                                                                            \
        (void)m;                                                                                             \
        return value_bool(condition);                                                                        \
    }

TEST_TYPE(is_defined, v.type != VALUE_UNDEFINED)
TEST_TYPE(is_undefined, v.type == VALUE_UNDEFINED)
TEST_TYPE(is_none, v.type == VALUE_NONE)
TEST_TYPE(is_boolean, v.type == VALUE_BOOL)
TEST_TYPE(is_true, v.type == VALUE_BOOL && v.b)
TEST_TYPE(is_false, v.type == VALUE_BOOL && !v.b)
TEST_TYPE(is_integer, v.type == VALUE_INT)
TEST_TYPE(is_float, v.type == VALUE_FLOAT)
TEST_TYPE(is_number, value_is_number(v))
TEST_TYPE(is_string, v.type == VALUE_STRING || v.type == VALUE_MARKUP)
TEST_TYPE(is_mapping, v.type == VALUE_DICT)
TEST_TYPE(is_sequence, v.type == VALUE_UNDEFINED || v.type == VALUE_STRING || v.type == VALUE_MARKUP ||
                           v.type == VALUE_DICT || (v.type == VALUE_LIST && v.list->kind <= KIND_RANGE))
TEST_TYPE(is_iterable, v.type == VALUE_UNDEFINED || v.type == VALUE_STRING || v.type == VALUE_MARKUP ||
                           v.type == VALUE_DICT || v.type == VALUE_LIST || v.type == VALUE_LOOP)
TEST_TYPE(is_callable, v.type == VALUE_UNDEFINED || v.type == VALUE_CALLABLE || v.type == VALUE_LOOP)

static int64_t remainder_of(Machine *m, Value v, Value divisor) {
    const Value rest = operator_binary(m, OP_MOD, v, divisor);
    return rest.type == VALUE_FLOAT ? (rest.f == 1   ? 1
                                       : rest.f != 0 ? 2
                                                     : 0)
           : rest.type == VALUE_INT ? rest.i
                                    : 0;
}

static Value is_odd(Machine *m, const CallArgs *a) {
    return value_bool(remainder_of(m, a->at[0], value_int(2)) == 1);
}
static Value is_even(Machine *m, const CallArgs *a) {
    return value_bool(remainder_of(m, a->at[0], value_int(2)) == 0);
}
static Value is_divisible(Machine *m, const CallArgs *a) {
    return value_bool(remainder_of(m, a->at[0], a->at[1]) == 0);
}

static Value has_case(Machine *m, const CallArgs *a, const char *method) {
    const CallArgs text = {.at = (Value[]){value_text(m, a->at[0])}, .n = 1};
    return builtin_call(m, "test", builtin_find(CHAT_STRING_METHODS, value_view(method, strlen(method))),
                        &text);
}

static Value is_lower(Machine *m, const CallArgs *a) { return has_case(m, a, "islower"); }
static Value is_upper(Machine *m, const CallArgs *a) { return has_case(m, a, "isupper"); }

static Value is_same(Machine *m, const CallArgs *a) {
    const Value x = a->at[0], y = a->at[1];
    return value_bool(x.type == y.type && (x.type >= VALUE_LIST ? x.dict == y.dict : value_equal(m, x, y)));
}

static Value compare(Machine *m, const CallArgs *a, Op op) {
    return value_bool(operator_compare(m, op, a->at[0], a->at[1]));
}
static Value is_in(Machine *m, const CallArgs *a) { return compare(m, a, OP_IN); }
static Value is_equal(Machine *m, const CallArgs *a) { return compare(m, a, OP_EQ); }
static Value is_different(Machine *m, const CallArgs *a) { return compare(m, a, OP_NE); }
static Value is_less(Machine *m, const CallArgs *a) { return compare(m, a, OP_LT); }
static Value is_at_most(Machine *m, const CallArgs *a) { return compare(m, a, OP_LE); }
static Value is_greater(Machine *m, const CallArgs *a) { return compare(m, a, OP_GT); }
static Value is_at_least(Machine *m, const CallArgs *a) { return compare(m, a, OP_GE); }

const Builtin CHAT_TESTS[] = {
    {"defined", is_defined, 1, "value"},
    {"undefined", is_undefined, 1, "value"},
    {"none", is_none, 1, "value"},
    {"boolean", is_boolean, 1, "value"},
    {"true", is_true, 1, "value"},
    {"false", is_false, 1, "value"},
    {"integer", is_integer, 1, "value"},
    {"float", is_float, 1, "value"},
    {"number", is_number, 1, "value"},
    {"string", is_string, 1, "value"},
    {"mapping", is_mapping, 1, "value"},
    {"sequence", is_sequence, 1, "value"},
    {"iterable", is_iterable, 1, "value"},
    {"callable", is_callable, 1, "obj"},
    {"odd", is_odd, 1, "value"},
    {"even", is_even, 1, "value"},
    {"divisibleby", is_divisible, 2, "value num"},
    {"lower", is_lower, 1, "value"},
    {"upper", is_upper, 1, "value"},
    {"sameas", is_same, 2, "value other"},
    {"in", is_in, 2, "value seq"},
    {"==", is_equal, 2, "a b"},
    {"eq", is_equal, 2, "a b"},
    {"equalto", is_equal, 2, "a b"},
    {"!=", is_different, 2, "a b"},
    {"ne", is_different, 2, "a b"},
    {"<", is_less, 2, "a b"},
    {"lt", is_less, 2, "a b"},
    {"lessthan", is_less, 2, "a b"},
    {"<=", is_at_most, 2, "a b"},
    {"le", is_at_most, 2, "a b"},
    {">", is_greater, 2, "a b"},
    {"gt", is_greater, 2, "a b"},
    {"greaterthan", is_greater, 2, "a b"},
    {">=", is_at_least, 2, "a b"},
    {"ge", is_at_least, 2, "a b"},
    {NULL, NULL, 0, NULL},
};
