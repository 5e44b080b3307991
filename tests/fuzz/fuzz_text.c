/* Input files of preprocess, plain or compressed. The target splits their paragraphs into sentences, and
 * parses their lines as JSON. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "data/json_line.h"
#include "data/sentences.h"
#include "data/text_reader.h"

static const char TEXT[] = "One sentence. Mr. Two, and\nthe next line!\n\nA title\n\n\xc3\x9c"
                           "ber 3.5 \xe7\xb5\x82\xe3\x80\x82 End.\n";

static const char JSON[] = "{\"a\": [1.5e3, {\"b\": NaN}], \"te\\u0078t\": \"\\ud83d\\ude00\\n\"}\n\n"
                           "{\"text\": [\"a\", \"\"], \"x\": {}}\r{\"text\": \"\\u0000\"}";

/* Checks that sentences are in order and inside the text, and that they cover all of it if white space is
 * kept. */
static void split(Sentences *s, const char *text, size_t n, bool keep) {
    size_t begin, end, last = 0;
    if (fuzz_ok(sentences_begin(s, text, n)))
        while (sentences_next(s, &begin, &end)) {
            CHECK(begin < end && end <= n && begin >= last, "a sentence from %zu to %zu", begin, end);
            CHECK(!keep || begin == last, "bytes %zu to %zu are lost", last, begin);
            last = end;
        }
    CHECK(!keep || last == n, "%zu of %zu bytes", last, n);
}

/* Checks that json_line accepts every object that jansson reads, and finds the same string. */
static void read_json(const char *line, size_t n) {
    static const char *const KEY[] = {"text"};
    JsonText value, element;
    json_t *text = NULL, *whole = json_loadb(line, n, JSON_ALLOW_NUL, NULL);
    const bool ok = fuzz_ok(json_line(line, n, true, KEY, 1, &value));
    CHECK(ok || !json_is_object(whole), "jansson reads '%.*s'", (int)n, line);
    if (ok && value.at && *value.at == '[')
        while (json_line_element(&value, &element)) CHECK(element.n, "an empty element");
    if (ok && value.at && *value.at == '"' && fuzz_ok(json_line_string(value, *KEY, &text)))
        CHECK(!whole || json_equal(text, json_object_get(whole, *KEY)), "another text in '%.*s'", (int)n,
              line);
    json_decref(text), json_decref(whole);
}

static void read_lines(const char *path) {
    const char *const inputs[] = {path};
    TextReader reader = text_reader(PREPROCESS_JSONL, inputs, 1, (InputOptions){0});
    Str line = {0};
    bool more = true;
    for (int i = 0; i < 100 && more; i++) {
        str_clear(&line);
        if (!fuzz_ok(text_reader_next(&reader, &line, &more))) break;
        if (more) read_json(line.s, line.len);
    }
    text_reader_close(&reader);
    str_free(&line);
}

bool fuzz_one(const uint8_t *bytes, size_t n) {
    char *path = fuzz_file("a.txt", bytes, n);
    const char *const inputs[] = {path};
    read_lines(path);
    TextReader reader = text_reader(PREPROCESS_TEXT_PARAGRAPHS, inputs, 1, (InputOptions){0});
    Str record = {0};
    Sentences *sentences[2];
    bool more = true, ok = true;
    for (int keep = 0; keep < 2; keep++)
        CHECK(fuzz_ok(sentences_open("en", keep, &sentences[keep])), "no sentences");
    for (int records = 0; ok && more && records < 100; records++) {
        str_clear(&record);
        ok = fuzz_ok(text_reader_next(&reader, &record, &more));
        if (ok && more && record.len < 1 << 16)
            for (int keep = 0; keep < 2; keep++) split(sentences[keep], record.s, record.len, keep);
    }
    sentences_close(sentences[0]), sentences_close(sentences[1]);
    text_reader_close(&reader);
    str_free(&record);
    free(path);
    return ok;
}

void fuzz_seeds(Corpus *c) {
    char packed[1024];
    corpus_add(c, (const uint8_t *)TEXT, sizeof TEXT - 1);
    const size_t n = ZSTD_compress(packed, sizeof packed, TEXT, sizeof TEXT - 1, 3);
    CHECK(!ZSTD_isError(n), "zstd");
    corpus_add(c, (const uint8_t *)packed, n);
    corpus_add(c, JSON, sizeof JSON - 1);
    corpus_add_glob(c, "tests/fuzz/corpus/text.*"); /* bzip2, xz, and zstd with skippable frames */
    char *path = fuzz_path("seed.gz");
    gzFile f = gzopen(path, "wb");
    gzwrite(f, TEXT, sizeof TEXT - 1);
    CHECK(gzclose(f) == Z_OK, "gzip");
    corpus_add_file(c, path);
    free(path);
}
