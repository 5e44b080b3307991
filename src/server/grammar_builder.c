#include "server/grammar_builder.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/json_text.h"
#include "base/mem.h"

enum { DIGITS = 15 }; /* an integer with at most 15 digits fits into 64 bits, and is exact as a double */

/* ---- nodes ---- */

static int32_t add(GrammarBuilder *b, GrammarNode node) {
    if (b->n == b->room) b->node = mem_grow(b->node, (size_t)(b->room = 2 * b->n + 1), sizeof *b->node);
    b->node[b->n] = node;
    return b->n++;
}

void builder_init(GrammarBuilder *b) {
    *b = (GrammarBuilder){.node = NULL};
    build_loop(b);
    for (int i = 0; i < JSON_RULES; i++) build_rule(b);
}

void builder_free(GrammarBuilder *b) { free(b->node), free(b->rule); }

GrammarNode *builder_end(GrammarBuilder *b, int32_t first, int64_t *n) {
    build_resolve(b, 0, first);
    for (GrammarNode *x = b->node; x < b->node + b->n; x++)
        if (x->kind == GRAMMAR_CALL) x->next = b->rule[x->next];
    GrammarNode *nodes = b->node;
    *n = b->n;
    b->node = NULL;
    return nodes;
}

int32_t build_end(GrammarBuilder *b) { return add(b, (GrammarNode){.kind = GRAMMAR_RETURN}); }

static int32_t range(GrammarBuilder *b, int low, int high, int32_t next) {
    return add(b,
               (GrammarNode){.kind = GRAMMAR_BYTE, .low = (uint8_t)low, .high = (uint8_t)high, .next = next});
}

int32_t build_bytes(GrammarBuilder *b, const char *bytes, size_t n, int32_t next) {
    while (n--) next = range(b, (unsigned char)bytes[n], (unsigned char)bytes[n], next);
    return next;
}

int32_t build_text(GrammarBuilder *b, const char *text, int32_t next) {
    return build_bytes(b, text, strlen(text), next);
}

int32_t build_newline(GrammarBuilder *b, int32_t next) {
    return build_either(b, next, build_text(b, "\n", next));
}

int32_t build_marker(GrammarBuilder *b, const Tokenizer *t, const char *marker, int32_t next) {
    const int32_t token = *marker ? tokenizer_token_id(t, marker) : -1;
    return token < 0 ? build_text(b, marker, next) : build_token(b, token, next);
}

int32_t build_token(GrammarBuilder *b, int32_t token, int32_t next) {
    return add(b, (GrammarNode){.kind = GRAMMAR_TOKEN, .next = next, .other = token});
}

int32_t build_either(GrammarBuilder *b, int32_t x, int32_t y) {
    return add(b, (GrammarNode){.kind = GRAMMAR_EITHER, .next = x, .other = y});
}

int32_t build_any(GrammarBuilder *b, const int32_t *nodes, int64_t n) {
    return n == 1 ? *nodes
                  : build_either(b, build_any(b, nodes, n / 2), build_any(b, nodes + n / 2, n - n / 2));
}

int32_t build_loop(GrammarBuilder *b) { return add(b, (GrammarNode){.kind = GRAMMAR_EITHER}); }

void build_resolve(GrammarBuilder *b, int32_t loop, int32_t is) {
    b->node[loop].next = b->node[loop].other = is;
}

static int32_t blank(GrammarBuilder *b, int32_t next) {
    return build_either(b, next, range(b, ' ', ' ', next));
}
int32_t build_colon(GrammarBuilder *b, int32_t next) { return build_text(b, ":", blank(b, next)); }
int32_t build_comma(GrammarBuilder *b, int32_t next) { return build_text(b, ",", blank(b, next)); }

/* ---- rules ---- */

int32_t build_rule(GrammarBuilder *b) {
    b->rule = mem_grow(b->rule, (size_t)b->rules + 1, sizeof *b->rule);
    b->rule[b->rules] = -1;
    return b->rules++;
}

void rule_begins(GrammarBuilder *b, int32_t rule, int32_t first) { b->rule[rule] = first; }

int32_t build_call(GrammarBuilder *b, int32_t rule, int32_t next) {
    return add(b, (GrammarNode){.kind = GRAMMAR_CALL, .next = rule, .other = next});
}

/* ---- strings ---- */

static int32_t hex(GrammarBuilder *b, int32_t next) {
    return build_any(
        b, (int32_t[]){range(b, '0', '9', next), range(b, 'A', 'F', next), range(b, 'a', 'f', next)}, 3);
}

/* A hexadecimal digit that is not zero. */
static int32_t hex_above_0(GrammarBuilder *b, int32_t next) {
    return build_any(
        b, (int32_t[]){range(b, '1', '9', next), range(b, 'A', 'F', next), range(b, 'a', 'f', next)}, 3);
}

/* The digits after \u: neither 0000 nor a surrogate (D800 to DFFF). */
static int32_t code_point(GrammarBuilder *b, int32_t next) {
    const int32_t one = hex(b, next), two = hex(b, one), three = hex(b, two),
                  zeros =
                      build_any(b,
                                (int32_t[]){hex_above_0(b, two),
                                            range(b, '0', '0',
                                                  build_either(b, hex_above_0(b, one),
                                                               range(b, '0', '0', hex_above_0(b, next))))},
                                2),
                  before_surrogates = range(b, '0', '7', two);
    return build_any(
        b,
        (int32_t[]){range(b, '0', '0', zeros), range(b, '1', '9', three), range(b, 'A', 'C', three),
                    range(b, 'E', 'F', three), range(b, 'a', 'c', three), range(b, 'e', 'f', three),
                    range(b, 'D', 'D', before_surrogates), range(b, 'd', 'd', before_surrogates)},
        8);
}

static int32_t escape(GrammarBuilder *b, int32_t next) {
    static const char SHORT[] = "\"\\/bfnrt";
    int32_t ways[sizeof SHORT];
    for (size_t i = 0; i + 1 < sizeof SHORT; i++) ways[i] = range(b, SHORT[i], SHORT[i], next);
    ways[sizeof SHORT - 1] = range(b, 'u', 'u', code_point(b, next));
    return range(b, '\\', '\\', build_any(b, ways, sizeof SHORT));
}

/* A UTF-8 character outside ASCII (Unicode 15, table 3-7). */
static int32_t beyond_ascii(GrammarBuilder *b, int32_t next) {
    const int32_t one = range(b, 0x80, 0xBF, next), two = range(b, 0x80, 0xBF, one),
                  three = range(b, 0x80, 0xBF, two),
                  ways[] = {range(b, 0xC2, 0xDF, one),   range(b, 0xE0, 0xE0, range(b, 0xA0, 0xBF, one)),
                            range(b, 0xE1, 0xEC, two),   range(b, 0xED, 0xED, range(b, 0x80, 0x9F, one)),
                            range(b, 0xEE, 0xEF, two),   range(b, 0xF0, 0xF0, range(b, 0x90, 0xBF, two)),
                            range(b, 0xF1, 0xF3, three), range(b, 0xF4, 0xF4, range(b, 0x80, 0x8F, two))};
    return build_any(b, ways, sizeof ways / sizeof *ways);
}

/* All characters except control characters, quotes and backslashes. */
static int32_t string(GrammarBuilder *b, int32_t next) {
    const int32_t loop = build_loop(b), ways[] = {range(b, '"', '"', next),   range(b, 0x20, 0x21, loop),
                                                  range(b, 0x23, 0x5B, loop), range(b, 0x5D, 0x7F, loop),
                                                  beyond_ascii(b, loop),      escape(b, loop)};
    build_resolve(b, loop, build_any(b, ways, sizeof ways / sizeof *ways));
    return range(b, '"', '"', loop);
}

/* All ASCII characters except x, y and control characters other than tabs and line ends. */
static int32_t ascii_except(GrammarBuilder *b, char x, char y, int32_t next) {
    int32_t ways[8];
    int64_t n = 0;
    for (int low = 0, end; low < 0x80; low = end + 1) {
        for (end = low;
             end < 0x80 && end != x && end != y && (end >= ' ' || strchr("\t\n\r", end ? end : 1));)
            end++;
        if (end > low) ways[n++] = range(b, low, end - 1, next);
    }
    return build_any(b, ways, n);
}

int32_t build_until(GrammarBuilder *b, const char *tag, int32_t token, int32_t next) {
    const int32_t none = build_loop(b), one = build_loop(b), wide = beyond_ascii(b, none);
    int32_t at = next; /* the node after k bytes of the tag */
    CHECK(*tag && !strchr(tag + 1, *tag), "a tag repeats its first byte: %s", tag);
    for (size_t k = strlen(tag); k-- > 0;) {
        const int32_t ways[] = {range(b, tag[k], tag[k], at), ascii_except(b, tag[k], *tag, none), wide,
                                k ? range(b, *tag, *tag, one) : wide,
                                token < 0 ? wide : build_token(b, token, next)};
        at = build_any(b, ways, sizeof ways / sizeof *ways);
        if (k == 1) build_resolve(b, one, at);
    }
    build_resolve(b, none, at);
    return none;
}

/* ---- numbers ---- */

/* Up to n digits. */
static int32_t digits(GrammarBuilder *b, int n, int32_t next) {
    int32_t at = next;
    for (int i = 0; i < n; i++) at = build_either(b, next, range(b, '0', '9', at));
    return at;
}

static int32_t integer(GrammarBuilder *b, int32_t next) {
    const int32_t whole =
        build_either(b, range(b, '0', '0', next), range(b, '1', '9', digits(b, DIGITS - 1, next)));
    return build_either(b, whole, range(b, '-', '-', whole));
}

static int32_t number(GrammarBuilder *b, int32_t next) {
    const int32_t power = range(b, '0', '9', digits(b, 1, next)),
                  sign = build_any(
                      b, (int32_t[]){power, range(b, '+', '+', power), range(b, '-', '-', power)}, 3),
                  exponent =
                      build_any(b, (int32_t[]){next, range(b, 'e', 'e', sign), range(b, 'E', 'E', sign)}, 3),
                  fraction = range(b, '.', '.', range(b, '0', '9', digits(b, DIGITS - 1, exponent)));
    return integer(b, build_either(b, exponent, fraction));
}

/* ---- values ---- */

static int32_t object(GrammarBuilder *b, int32_t next) {
    const int32_t loop = build_loop(b), end = build_text(b, "}", next),
                  more = build_either(b, end, build_comma(b, loop)),
                  member = build_json(b, RULE_STRING, build_colon(b, build_json(b, RULE_VALUE, more)));
    build_resolve(b, loop, member);
    return build_text(b, "{", build_either(b, end, loop));
}

static int32_t array(GrammarBuilder *b, int32_t next) {
    const int32_t loop = build_loop(b), end = build_text(b, "]", next);
    build_resolve(b, loop, build_json(b, RULE_VALUE, build_either(b, end, build_comma(b, loop))));
    return build_text(b, "[", build_either(b, end, loop));
}

static int32_t value(GrammarBuilder *b, int32_t next) {
    return build_any(b,
                     (int32_t[]){build_json(b, RULE_STRING, next), build_json(b, RULE_NUMBER, next),
                                 build_json(b, RULE_OBJECT, next), build_json(b, RULE_ARRAY, next),
                                 build_text(b, "true", next), build_text(b, "false", next),
                                 build_text(b, "null", next)},
                     7);
}

int32_t build_json(GrammarBuilder *b, JsonRule rule, int32_t next) {
    static int32_t (*const BUILD[JSON_RULES])(GrammarBuilder *, int32_t next) = {
        [RULE_STRING] = string, [RULE_INTEGER] = integer, [RULE_NUMBER] = number,
        [RULE_VALUE] = value,   [RULE_OBJECT] = object,   [RULE_ARRAY] = array};
    if (b->rule[rule] < 0) {
        b->rule[rule] = 0; /* the rule may call itself */
        const int32_t first = BUILD[rule](b, build_end(b));
        b->rule[rule] = first;
    }
    return build_call(b, (int32_t)rule, next);
}

static int32_t scalar(GrammarBuilder *b, const json_t *json, int32_t next) {
    Str text = {0};
    if (json_is_real(json)) {
        json_print_real(&text, json_real_value(json));
    } else {
        char *dumped = json_dumps(json, JSON_ENCODE_ANY);
        str_puts(&text, dumped);
        free(dumped);
    }
    const int32_t first = build_bytes(b, text.s, text.len, next);
    str_free(&text);
    return first;
}

static int32_t constant_array(GrammarBuilder *b, const json_t *json, int32_t next) {
    next = build_text(b, "]", next);
    for (size_t i = json_array_size(json); i--;) {
        next = build_constant(b, json_array_get(json, i), next);
        if (i) next = build_comma(b, next);
    }
    return build_text(b, "[", next);
}

static int32_t constant_object(GrammarBuilder *b, const json_t *json, int32_t next) {
    const char *key;
    json_t *one, *keys = json_array();
    json_object_foreach((json_t *)json, key, one) json_array_append_new(keys, json_string(key));
    next = build_text(b, "}", next);
    for (size_t i = json_array_size(keys); i--;) {
        const json_t *name = json_array_get(keys, i);
        next = build_constant(b, json_object_get(json, json_string_value(name)), next);
        next = scalar(b, name, build_colon(b, next));
        if (i) next = build_comma(b, next);
    }
    json_decref(keys);
    return build_text(b, "{", next);
}

int32_t build_constant(GrammarBuilder *b, const json_t *json, int32_t next) {
    return json_is_array(json)    ? constant_array(b, json, next)
           : json_is_object(json) ? constant_object(b, json, next)
                                  : scalar(b, json, next);
}
