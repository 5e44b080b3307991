#include "fuzz/mutate.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "base/philox.h"

typedef struct Dice {
    uint64_t seed, number, drawn;
} Dice;

static uint64_t roll(Dice *d, uint64_t sides) {
    return sides ? philox_u32(d->seed, d->number, d->drawn++) % sides : 0;
}

static const char *const NUMBERS[] = {
    "0",
    "1",
    "2",
    "3",
    "-1",
    "64",
    "255",
    "65536",
    "2147483647",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551616",
    "1e308",
    "-1e400",
    "0.5",
    "1e-320",
};
static const char *const WORDS[] = {
    "NaN",  "null",  "true",      "false",       "\"\"",        "\"a\"", "[]", "{}",
    "[[]]", "[0,0]", "{\"a\":1}", "\"\\u0000\"", "\"\\ud800\"", "\xff",  "-",
};
static const uint64_t INTEGERS[] = {0,
                                    1,
                                    2,
                                    7,
                                    8,
                                    127,
                                    128,
                                    255,
                                    256,
                                    0x7fff,
                                    0x8000,
                                    0xffff,
                                    0x10000,
                                    0x7fffffff,
                                    0x80000000,
                                    0xffffffff,
                                    0x100000000,
                                    0x7fffffffffffffff,
                                    0x8000000000000000,
                                    0xffffffffffffffff,
                                    0x7ffffffffffffff8,
                                    0x2000000000000000,
                                    0x1555555555555556};

enum {
    COUNT_NUMBERS = sizeof NUMBERS / sizeof *NUMBERS,
    COUNT_WORDS = sizeof WORDS / sizeof *WORDS,
    COUNT_INTEGERS = sizeof INTEGERS / sizeof *INTEGERS
};

/* Replaces `length` bytes at `at` by the n given bytes. */
static void splice(Str *s, size_t at, size_t length, const void *bytes, size_t n) {
    Str made = {0};
    str_add(&made, s->s, at);
    str_add(&made, bytes, n);
    str_add(&made, s->s + at + length, s->len - at - length);
    str_free(s);
    *s = made;
}

static void change_integer(Str *s, Dice *d) {
    size_t width = (size_t)1 << roll(d, 4);
    if (s->len < width) return;
    size_t at = roll(d, s->len - width + 1);
    uint64_t value = INTEGERS[roll(d, COUNT_INTEGERS)], old = 0;
    memcpy(&old, s->s + at, width);
    if (roll(d, 3) == 0) value = old + roll(d, 65) - 32;
    memcpy(s->s + at, &value, width);
}

typedef struct Token {
    size_t at, end;
} Token;

/* Returns the next number, word or quoted string after a random position; empty if there is none nearby. */
static Token find_token(const Str *s, Dice *d) {
    size_t at = roll(d, s->len), limit = at + 400 < s->len ? at + 400 : s->len;
    while (at < limit && !isalnum((unsigned char)s->s[at]) && s->s[at] != '"') at++;
    if (at == limit) return (Token){at, at};
    size_t end = at + 1;
    if (s->s[at] == '"') {
        while (end < limit && s->s[end] != '"') end++;
        end += end < limit;
    } else {
        while (at > 0 && (isalnum((unsigned char)s->s[at - 1]) || s->s[at - 1] == '-')) at--;
        while (end < limit && (isalnum((unsigned char)s->s[end]) || s->s[end] == '.')) end++;
    }
    return (Token){at, end};
}

static void change_token(Str *s, Dice *d) {
    Token t = find_token(s, d);
    uint64_t pick = roll(d, COUNT_WORDS + COUNT_NUMBERS);
    const char *word = pick < COUNT_WORDS ? WORDS[pick] : NUMBERS[pick - COUNT_WORDS];
    if (t.end > t.at) splice(s, t.at, t.end - t.at, word, strlen(word));
}

/* Replaces a number by a number, or a string by a neighbouring one, so that well-formed input stays
 * well-formed and gets past the parser. */
static void change_value(Str *s, Dice *d) {
    Token t = find_token(s, d), other = find_token(s, d);
    if (t.end == t.at || other.end == other.at) return;
    if (s->s[t.at] == '-' || isdigit((unsigned char)s->s[t.at])) {
        const char *number = NUMBERS[roll(d, COUNT_NUMBERS)];
        if (roll(d, 2))
            splice(s, t.at, t.end - t.at, number, strlen(number));
        else
            s->s[t.end - 1] = (char)('0' + roll(d, 10));
    } else if ((s->s[t.at] == '"') == (s->s[other.at] == '"')) {
        Str copy = {0};
        str_add(&copy, s->s + other.at, other.end - other.at);
        splice(s, t.at, t.end - t.at, copy.s, copy.len);
        str_free(&copy);
    }
}

/* Repeats, moves or deletes a range, which may be a line. */
static void change_range(Str *s, Dice *d, const Str *other) {
    size_t at = roll(d, s->len), length = 1 + roll(d, 1 + roll(d, 1 + roll(d, s->len - at)));
    if (at + length > s->len) length = s->len - at;
    if (roll(d, 3) == 0) {
        while (at > 0 && s->s[at - 1] != '\n' && length < 4096) at--, length++;
        while (at + length < s->len && s->s[at + length - 1] != '\n' && length < 4096) length++;
    }
    switch (roll(d, 4)) {
    case 0:
        splice(s, at, length, "", 0);
        break;
    case 1: {
        Str copy = {0};
        str_add(&copy, s->s + at, length);
        splice(s, roll(d, s->len), 0, copy.s, copy.len);
        str_free(&copy);
        break;
    }
    case 2:
        if (other->len) {
            size_t from = roll(d, other->len), n = length < other->len - from ? length : other->len - from;
            splice(s, at, length, other->s + from, n);
        }
        break;
    default:
        memset(s->s + at, (int)roll(d, 256), length);
    }
}

static void nest(Str *s, Dice *d) {
    static const char *const OPEN[] = {"[", "{\"a\":", "(", "\"\\"};
    const char *open = OPEN[roll(d, 4)];
    Str deep = {0};
    for (uint64_t n = 1 + roll(d, 5000); n--;) str_puts(&deep, open);
    splice(s, roll(d, s->len), 0, deep.s, deep.len);
    str_free(&deep);
}

void mutate(const Str *seeds, int n, uint64_t seed, uint64_t number, Str *out) {
    Dice d = {seed, number, 0};
    const Str *from = &seeds[roll(&d, (uint64_t)n)], *other = &seeds[roll(&d, (uint64_t)n)];
    str_clear(out);
    str_add(out, from->s, from->len);
    bool gentle = roll(&d, 2);
    for (uint64_t changes = 1 + roll(&d, 1 + roll(&d, gentle ? 3 : 6)); changes-- && out->len;) {
        uint64_t kind = roll(&d, 100);
        if (gentle && kind < 80)
            change_value(out, &d);
        else if (gentle || kind < 20)
            change_integer(out, &d);
        else if (kind < 35)
            out->s[roll(&d, out->len)] ^= (char)(1 << roll(&d, 8));
        else if (kind < 45)
            out->s[roll(&d, out->len)] = (char)roll(&d, 256);
        else if (kind < 70)
            change_token(out, &d);
        else if (kind < 90)
            change_range(out, &d, other);
        else if (kind < 96)
            splice(out, roll(&d, out->len), 0, WORDS[roll(&d, COUNT_WORDS)], 1);
        else if (kind < 97)
            nest(out, &d);
        else
            out->len = roll(&d, out->len);
    }
}
