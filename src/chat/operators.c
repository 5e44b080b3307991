#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "chat/call.h"

static const char *const SYMBOLS[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

static Value wrong_types(Machine *m, Op op, Value a, Value b) {
    if (a.type == VALUE_UNDEFINED || b.type == VALUE_UNDEFINED)
        value_fail_undefined(m, a.type == VALUE_UNDEFINED ? a : b);
    machine_fail(m, "%s %s %s is not defined; convert one of them, or use ~ to join texts",
                 value_type_name(a), SYMBOLS[op], value_type_name(b));
    return UNDEFINED;
}

static Value too_large(Machine *m, Op op) {
    machine_fail(m, "the result of %s is beyond 64 bits; use smaller numbers", SYMBOLS[op]);
    return UNDEFINED;
}

static Value float_result(Machine *m, Op op, double a, double b) {
    if ((op == OP_DIV || op == OP_FLOOR || op == OP_MOD) && b == 0) {
        machine_fail(m, "division by zero; test the divisor first");
        return UNDEFINED;
    }
    switch (op) {
    case OP_ADD:
        return value_float(a + b);
    case OP_SUB:
        return value_float(a - b);
    case OP_MUL:
        return value_float(a * b);
    case OP_DIV:
        return value_float(a / b);
    default:
        break;
    }
    double rest = fmod(a, b);
    if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
    if (op == OP_MOD) return value_float(rest == 0 ? copysign(0, b) : rest);
    const double quotient = (a - rest) / b, whole = floor(quotient);
    return value_float(quotient == 0 ? copysign(0, a / b) : quotient - whole > 0.5 ? whole + 1 : whole);
}

static Value power(Machine *m, Value a, Value b) {
    if (a.type == VALUE_FLOAT || b.type == VALUE_FLOAT || value_whole(b) < 0) {
        const double x = value_number(a), y = value_number(b);
        if ((x == 0 && y < 0) || (x < 0 && y != floor(y))) {
            machine_fail(m, "the power is not a real number; test its operands first");
            return UNDEFINED;
        }
        return value_float(pow(x, y));
    }
    int64_t result = 1, base = value_whole(a);
    for (int64_t n = value_whole(b); n; n >>= 1) {
        if (n & 1 && __builtin_mul_overflow(result, base, &result)) return too_large(m, OP_POW);
        if (n > 1 && __builtin_mul_overflow(base, base, &base)) return too_large(m, OP_POW);
    }
    return value_int(result);
}

static Value int_result(Machine *m, Op op, int64_t a, int64_t b) {
    int64_t made = 0;
    bool overflow = false;
    if (op == OP_DIV || !b || (a == INT64_MIN && b == -1))
        if (op == OP_DIV || op == OP_FLOOR || op == OP_MOD) {
            if (op == OP_DIV || !b) return float_result(m, op, (double)a, (double)b);
            return op == OP_MOD ? value_int(0) : too_large(m, op);
        }
    if (op == OP_ADD) overflow = __builtin_add_overflow(a, b, &made);
    if (op == OP_SUB) overflow = __builtin_sub_overflow(a, b, &made);
    if (op == OP_MUL) overflow = __builtin_mul_overflow(a, b, &made);
    const bool other_sign = (a < 0) != (b < 0);
    if (op == OP_FLOOR) made = a / b - (a % b != 0 && other_sign);
    if (op == OP_MOD) made = a % b + (a % b != 0 && other_sign ? b : 0);
    return overflow ? too_large(m, op) : value_int(made);
}

static Value repeated(Machine *m, Value of, int64_t times) {
    Value list = of.type == VALUE_LIST ? value_list(m, of.list->kind) : UNDEFINED;
    Str text = {0};
    if (of.type == VALUE_STRING ? !of.n : !of.list->n) times = 0;
    for (int64_t i = 0; i < times && machine_spend(m, 1); i++)
        if (of.type == VALUE_STRING)
            machine_add(m, &text, of.s, of.n);
        else
            for (size_t k = 0; k < of.list->n && !m->err.code; k++) list_push(m, list.list, of.list->at[k]);
    return of.type == VALUE_STRING ? value_take(m, &text) : list;
}

static bool is_sequence(Value v) {
    return v.type == VALUE_STRING || value_is_list(v, KIND_LIST) || value_is_list(v, KIND_TUPLE);
}

static Value added(Machine *m, Value a, Value b) {
    if (a.type == VALUE_STRING) return value_join(m, a, b);
    Value made = value_list(m, a.list->kind);
    for (size_t i = 0; i < a.list->n && !m->err.code; i++) list_push(m, made.list, a.list->at[i]);
    for (size_t i = 0; i < b.list->n && !m->err.code; i++) list_push(m, made.list, b.list->at[i]);
    return made;
}

Value operator_binary(Machine *m, Op op, Value a, Value b) {
    if (!machine_spend(m, 1)) return UNDEFINED;
    if (value_is_number(a) && value_is_number(b)) {
        if (op == OP_POW) return power(m, a, b);
        return a.type == VALUE_FLOAT || b.type == VALUE_FLOAT
                   ? float_result(m, op, value_number(a), value_number(b))
                   : int_result(m, op, value_whole(a), value_whole(b));
    }
    const bool same = a.type == b.type && (a.type != VALUE_LIST || a.list->kind == b.list->kind);
    if (op == OP_ADD && is_sequence(a) && same) return added(m, a, b);
    if (op == OP_MUL && is_sequence(a) && value_is_int(b)) return repeated(m, a, value_whole(b));
    if (op == OP_MUL && is_sequence(b) && value_is_int(a)) return repeated(m, b, value_whole(a));
    if (op == OP_MOD && a.type == VALUE_STRING) return operator_format(m, a, b);
    return wrong_types(m, op, a, b);
}

Value operator_negative(Machine *m, Value v) {
    if (v.type == VALUE_FLOAT) return value_float(-v.f);
    if (value_is_number(v)) return int_result(m, OP_SUB, 0, value_whole(v));
    if (v.type == VALUE_UNDEFINED) value_fail_undefined(m, v);
    machine_fail(m, "%s cannot be negated; use a number", value_type_name(v));
    return UNDEFINED;
}

static bool is_nan(Value v) { return v.type == VALUE_FLOAT && isnan(v.f); }

bool operator_compare(Machine *m, Op op, Value a, Value b) {
    if (op == OP_EQ || op == OP_NE) return value_equal(m, a, b) == (op == OP_EQ);
    if (op == OP_IN || op == OP_NOT_IN) return value_contains(m, b, a) == (op == OP_IN);
    const int order = value_order(m, a, b);
    if (is_nan(a) || is_nan(b)) return false;
    return op == OP_LT ? order < 0 : op == OP_LE ? order <= 0 : op == OP_GT ? order > 0 : order >= 0;
}

/* ---- text % values ---- */

typedef struct Spec {
    bool left, zero, plus, space, other;
    int width, precision; /* precision is -1 if it is not given */
} Spec;

static void pad(Machine *m, const Spec *s, const char *text, size_t n, size_t sign, Str *out) {
    const size_t length = sign + n; /* the text of a number is ASCII */
    const size_t missing = (size_t)s->width > length ? (size_t)s->width - length : 0;
    for (size_t i = 0; i < missing && !s->left && !s->zero; i++) machine_puts(m, out, " ");
    machine_add(m, out, text, sign);
    for (size_t i = 0; i < missing && !s->left && s->zero; i++) machine_puts(m, out, "0");
    machine_add(m, out, text + sign, n);
    for (size_t i = 0; i < missing && s->left; i++) machine_puts(m, out, " ");
}

static void format_number(Machine *m, Spec s, char type, Value v, Str *out) {
    if (!value_is_number(v) || (strchr("xXo", type) && v.type == VALUE_FLOAT)) {
        value_fail_type(m, v, "a conversion such as %d needs a number");
        return;
    }
    char text[800], form[] = {'%', '+', '.', '*', 'l', 'l', type == 'd' ? 'u' : type, '\0'};
    const bool is_float = strchr("eEfFgG", type) != NULL;
    if (!is_float && v.type == VALUE_FLOAT && !(fabs(v.f) < 9e18)) {
        machine_fail(m, "%%%c needs a number of at most 64 bits", type);
        return;
    }
    if (is_float) {
        form[4] = type, form[5] = '\0';
        snprintf(text, sizeof text, form, s.precision < 0 ? 6 : s.precision, value_number(v));
    } else {
        const int64_t i = v.type == VALUE_FLOAT ? (int64_t)v.f : value_whole(v);
        const uint64_t size = i < 0 ? -(uint64_t)i : (uint64_t)i;
        form[0] = i < 0 ? '-' : '+', form[1] = '%';
        snprintf(text, sizeof text, form, s.precision < 0 ? 1 : s.precision, (unsigned long long)size);
    }
    const bool shows_sign = text[0] == '-' || s.plus;
    if (!shows_sign && s.space) text[0] = ' ';
    const char *from = text + !(shows_sign || s.space);
    s.zero &= !s.left;
    pad(m, &s, from, strlen(text + 1), from == text, out);
}

static void format_text(Machine *m, Spec s, char type, Value v, Str *out) {
    Str text = {0};
    if (type == 's')
        value_print(m, v, &text);
    else
        value_repr(m, v, &text);
    Value shown = value_take(m, &text);
    if (s.precision >= 0) shown = access_slice(m, shown, value_none(), value_int(s.precision), value_none());
    if (m->err.code) return;
    const int64_t length = value_length(m, shown);
    s.width = s.width > length ? s.width + (int)((int64_t)shown.n - length) : 0;
    s.zero = false;
    pad(m, &s, shown.s, shown.n, 0, out);
}

/* Reads the number at *p. Returns at most 400, even if the number is larger. */
static int read_number(const char **p, const char *end) {
    int n = 0;
    for (; *p < end && **p >= '0' && **p <= '9'; ++*p) n = n < 400 ? n * 10 + (**p - '0') : n;
    return n < 400 ? n : 400;
}

static Spec read_spec(const char **p, const char *end) {
    Spec s = {.precision = -1};
    for (; *p < end && **p && strchr("-0+ #", **p); ++*p) {
        s.left |= **p == '-', s.zero |= **p == '0', s.plus |= **p == '+', s.space |= **p == ' ';
        s.other |= **p == '#';
    }
    s.width = read_number(p, end);
    if (*p < end && **p == '.') ++*p, s.precision = read_number(p, end);
    return s;
}

/* Returns the value of %(name)s at *p, or the next value of a tuple. */
static Value next_value(Machine *m, const char **p, const char *end, Value values, size_t *used) {
    if (*p < end && **p == '(') {
        const char *close = memchr(*p, ')', (size_t)(end - *p));
        if (!close || values.type != VALUE_DICT) {
            machine_fail(m, "%%(name) needs a dict on the right of %%");
            return UNDEFINED;
        }
        const Value *found = dict_get_text(m, values.dict, *p + 1, (size_t)(close - *p) - 1);
        if (!found) machine_fail(m, "the dict on the right of %% lacks a name that the text uses");
        *p = close + 1;
        *used = 1;
        return found ? *found : UNDEFINED;
    }
    const bool tuple = value_is_list(values, KIND_TUPLE);
    const size_t n = tuple ? values.list->n : 1, i = (*used)++;
    if (i >= n) {
        machine_fail(m, "the text on the left of %% needs more than %zu values", n);
        return UNDEFINED;
    }
    return tuple ? values.list->at[i] : values;
}

Value operator_format(Machine *m, Value text, Value values) {
    const char *end = text.s + text.n;
    Str out = {0};
    size_t used = 0;
    for (const char *p = text.s; p < end && machine_spend(m, 1);) {
        const char *at = memchr(p, '%', (size_t)(end - p));
        machine_add(m, &out, p, (size_t)((at ? at : end) - p));
        if (!at) break;
        p = at + 1;
        if (p < end && *p == '%') {
            machine_puts(m, &out, "%");
            p++;
            continue;
        }
        const char *after = p;
        if (p < end && *p == '(') { /* in %(name)s, the name precedes any flags */
            const char *close = memchr(p, ')', (size_t)(end - p));
            after = close ? close + 1 : end;
        }
        const Spec s = read_spec(&after, end);
        const char type = after < end ? *after : '\0';
        if (!type || s.other || !strchr("srdiufFeEgGxXo", type)) {
            machine_fail(
                m, "a text with %% has an unsupported conversion; use %%s, %%r, %%d, %%f, %%e, %%g or %%x");
            break;
        }
        const Value v = next_value(m, &p, end, values, &used);
        if (m->err.code) break;
        if (type == 's' || type == 'r')
            format_text(m, s, type, v, &out);
        else
            format_number(m, s, type == 'i' || type == 'u' ? 'd' : type, v, &out);
        p = after + 1;
    }
    const bool has_items =
        values.type == VALUE_DICT || (values.type == VALUE_LIST && values.list->kind <= KIND_RANGE);
    const size_t given = value_is_list(values, KIND_TUPLE) ? values.list->n : !has_items;
    if (!m->err.code && used < given)
        machine_fail(m, "the text on the left of %% accepts only %zu values", used);
    return value_take(m, &out);
}
