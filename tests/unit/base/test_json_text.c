/* Tests that the output equals that of repr() and json.dumps() in Python 3.11. */
#include <math.h>

#include "base/json_text.h"
#include "unit/cmocka_all.h"

/* Takes ownership of the value. */
static void assert_prints(json_t *json, int indent, int depth, const char *text) {
    Str s = {0};
    json_print(&s, json, indent, depth);
    assert_string_equal(s.s, text);
    str_free(&s), json_decref(json);
}

TEST(numbers_are_the_shortest) {
    static const struct {
        double x;
        const char *text;
    } REPR[] = {{0.969, "0.969"},
                {1, "1.0"},
                {1.0 / 3, "0.3333333333333333"},
                {1e16, "1e+16"},
                {1e-5, "1e-05"},
                {123456789.25, "123456789.25"},
                {0.1 + 0.2, "0.30000000000000004"},
                {1e-4, "0.0001"},
                {9007199254740993.0, "9007199254740992.0"},
                {INFINITY, "null"},
                {NAN, "null"}};
    for (size_t i = 0; i < sizeof REPR / sizeof *REPR; i++)
        assert_prints(json_finite(REPR[i].x), 0, 0, REPR[i].text);
}

TEST(strings_are_ascii) {
    assert_prints(json_string_nocheck("a\"\\\n\x01\x7f\xc3\xa9\xf0\x9f\x98\x80\xff"), 4, 0,
                  "\"a\\\"\\\\\\n\\u0001\\u007f\\u00e9\\ud83d\\ude00\\udcff\"");
}

TEST(zero_bytes_end_no_string) {
    json_t *json = json_object();
    json_object_setn_new(json, "a\0b", 3, json_stringn_nocheck("\0c", 2));
    assert_prints(json, 0, 0, "{\"a\\u0000b\": \"\\u0000c\"}");
}

TEST(members_are_indented) {
    static const char FORMAT[] = "{s:[i, {}], s:[], s:b, s:n, s:{s:b}}";
#define MEMBERS "b", 1, "a", "c", 1, "d", "e", "f", 0
    assert_prints(json_pack(FORMAT, MEMBERS), 0, 0,
                  "{\"b\": [1, {}], \"a\": [], \"c\": true, \"d\": null, \"e\": {\"f\": false}}");
    assert_prints(json_pack(FORMAT, MEMBERS), 2, 1,
                  "{\n    \"b\": [\n      1,\n      {}\n    ],\n    \"a\": [],\n    \"c\": true,\n"
                  "    \"d\": null,\n    \"e\": {\n      \"f\": false\n    }\n  }");
}
