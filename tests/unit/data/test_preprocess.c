/* Tests preprocessing with a tokenizer whose ids are the bytes of the text plus one. */
#include "fixture.h"

#include <fcntl.h>
#include <zlib.h>
#include <zstd.h>

#include "data/preprocess.h"

static Err bytes_plus_one(void *ctx, const char *text, size_t n, int32_t **tokens, size_t *count) {
    (void)ctx;
    if (n >= 3 && !memcmp(text, "BAD", 3)) return err_user("the text cannot be encoded");
    *tokens = mem_alloc(n * sizeof **tokens);
    for (size_t i = 0; i < n; i++) (*tokens)[i] = (unsigned char)text[i] + 1;
    *count = n;
    return ERR_OK;
}

static PreprocessConfig config(const char *const *inputs, int n, const char *output) {
    return (PreprocessConfig){.inputs = inputs,
                              .num_inputs = n,
                              .output_prefix = output,
                              .vocab_size = 257,
                              .workers = 3,
                              .encode = bytes_plus_one};
}

/* Returns the documents as text, in which '|' ends a sequence, '\n' ends a document, and '$' is the
 * end-of-document token (id 0). */
static char *dump(const char *prefix) {
    IndexedDataset d;
    Str out = {0};
    assert_ok(indexed_open(prefix, &d));
    str_puts(&out, "");
    for (int64_t doc = 0; doc < d.documents; doc++) {
        for (int64_t s = indexed_document(&d, doc); s < indexed_document(&d, doc + 1); s++) {
            int64_t ids[1000];
            indexed_tokens(&d, s, 0, indexed_length(&d, s), ids);
            for (int i = 0; i < indexed_length(&d, s); i++)
                str_printf(&out, "%c", ids[i] ? (int)ids[i] - 1 : '$');
            str_puts(&out, "|");
        }
        str_puts(&out, "\n");
    }
    indexed_close(&d);
    return out.s;
}

static void assert_dump(const char *prefix, const char *expected) {
    char *text = dump(prefix);
    assert_string_equal(text, expected);
    free(text);
}

TEST(json_lines_become_documents) {
    write_text("in.jsonl", "{\"text\": \"one\", \"title\": \"T1\", \"n\": 123456789012345678901234567890}\n"
                           "\n"
                           "{\"text\": [\"two\", \"\", \"three\"], \"title\": \"\"}\r\n"
                           "{\"title\": \"last\", \"text\": \"\"}");
    const char *const inputs[] = {"in.jsonl"}, *const keys[] = {"text", "title"};
    PreprocessConfig c = config(inputs, 1, "out");
    c.keys = keys, c.num_keys = 2, c.append_eod = true;
    PreprocessStats stats;
    assert_ok(preprocess_run(&c, &stats));
    assert_dump("out_text_document", "one$|\ntwo|three$|\n\n");
    assert_dump("out_title_document", "T1$|\n\nlast$|\n");
    assert_int_equal(stats.documents, 3);
    assert_int_equal(stats.sequences, 5);
    assert_int_equal(stats.tokens, 4 + 9 + 3 + 5);
    assert_int_equal(stats.bytes, file_size("in.jsonl"));
    assert_int_equal(stats.total_bytes, stats.bytes);
}

TEST(escapes_and_nuls_reach_the_tokenizer) {
    write_text("nul.jsonl", "{\"text\": \"a\\u0000\\u00e9\\n\"}\n");
    const char *const inputs[] = {"nul.jsonl"};
    PreprocessConfig c = config(inputs, 1, "nul");
    PreprocessStats stats;
    assert_ok(preprocess_run(&c, &stats));
    IndexedDataset d;
    assert_ok(indexed_open("nul_text_document", &d));
    static const uint16_t EXPECTED[] = {'a' + 1, 1, 0xc3 + 1, 0xa9 + 1, '\n' + 1};
    assert_int_equal(indexed_length(&d, 0), 5);
    assert_memory_equal(indexed_items(&d, 0, 0, 5), EXPECTED, sizeof EXPECTED);
    indexed_close(&d);
}

TEST(bad_input_is_a_sentence_and_leaves_nothing) {
    static const char *const LINES[][2] = {
        {"{\"text\": ", "line 2 of 'bad.jsonl': not valid JSON"},
        {"{\"text\": \"\xff\"}", "'bad.jsonl', line 2: byte 0xff at offset 27"},
        {"[1]", "not a JSON object"},
        {"{\"tex\": \"x\"}", "there is no key 'text': set --json-keys to the keys of the texts"},
        {"{\"text\": 5}", "neither a string nor a list"},
        {"{\"text\": [\"a\", 5]}", "element 1 of the key 'text' is not a string"},
        {"{\"text\": \"BAD\"}", "line 2 of 'bad.jsonl': the text cannot be encoded"},
    };
    const char *const inputs[] = {"bad.jsonl"};
    PreprocessConfig c = config(inputs, 1, "bad");
    PreprocessStats stats;
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++) {
        char *text = mem_printf("{\"text\": \"fine\"}\n%s\n{\"text\": \"BAD\"}\n", LINES[i][0]);
        write_text("bad.jsonl", text);
        assert_err(preprocess_run(&c, &stats), LINES[i][1]);
        free(text);
    }
    assert_int_equal(count_files(".", "bad_"), 0);
    c.workers = 0;
    assert_err(preprocess_run(&c, &stats), "--workers");
    c.workers = 1, c.append_eod = true, c.eod = -1;
    assert_err(preprocess_run(&c, &stats), "--append-eod");
    c.append_eod = false, c.inputs = (const char *const[]){"."};
    assert_err(preprocess_run(&c, &stats), "is a folder");
    c.inputs = (const char *const[]){"absent"};
    assert_err(preprocess_run(&c, &stats), "cannot open 'absent'");
    write_text("empty.jsonl", "\n{\"text\": \"\"}\n");
    c.inputs = (const char *const[]){"empty.jsonl"};
    assert_err(preprocess_run(&c, &stats), "the input has 1 documents but no text");
    assert_int_equal(count_files(".", "bad_"), 0);
    c.num_inputs = 0;
    assert_err(preprocess_run(&c, &stats), "nothing to preprocess");
}

TEST(plain_text_is_cut_into_files_or_paragraphs) {
    write_text("a.txt", "\n first\nline\n\n\n \t\nsecond\n");
    write_text("b.txt", "");
    write_text("c.txt", "third\r\n\r\nfourth");
    const char *const inputs[] = {"a.txt", "b.txt", "c.txt"};
    PreprocessConfig c = config(inputs, 3, "plain");
    PreprocessStats stats;
    c.kind = PREPROCESS_TEXT_FILES, c.append_eod = true;
    assert_ok(preprocess_run(&c, &stats));
    assert_dump("plain_text_document", "\n first\nline\n\n\n \t\nsecond\n$|\n\nthird\r\n\r\nfourth$|\n");
    c.kind = PREPROCESS_TEXT_PARAGRAPHS;
    assert_err(preprocess_run(&c, &stats), "'plain_text_document.bin' exists");
    c.overwrite = true;
    assert_ok(preprocess_run(&c, &stats));
    assert_dump("plain_text_document", " first\nline$|\nsecond$|\nthird\r$|\nfourth$|\n");
    assert_int_equal(stats.bytes, stats.total_bytes);
    c.keys = inputs, c.num_keys = 1;
    assert_err(preprocess_run(&c, &stats), "--json-keys applies only to JSON Lines");
}

static void count_calls(void *ctx, const PreprocessStats *s) {
    int64_t *last = ctx;
    assert_true(s->bytes >= *last && s->bytes <= s->total_bytes);
    *last = s->bytes;
}

/* More than 16384 documents of all lengths take several rounds. One worker and four workers must write equal
 * files. */
TEST(workers_keep_the_order) {
    Str text = {0};
    for (int i = 0; i < 40000; i++) str_printf(&text, "{\"text\": \"%d %*s\"}\n", i, i % 97, "x");
    assert_ok(file_write_atomic("many.jsonl", text.s, text.len));
    const char *const inputs[] = {"many.jsonl", "many.jsonl"};
    char one[33], four[33];
    PreprocessStats stats;
    for (int workers = 1; workers <= 4; workers += 3) {
        PreprocessConfig c = config(inputs, 2, workers == 1 ? "one" : "four");
        int64_t bytes = 0;
        c.workers = workers, c.progress = count_calls, c.progress_ctx = &bytes, c.append_eod = true,
        c.vocab_size = 70000;
        assert_ok(preprocess_run(&c, &stats));
        assert_int_equal(bytes, 2 * (int64_t)text.len);
        assert_int_equal(stats.documents, 80000);
    }
    file_md5("one_text_document.bin", one), file_md5("four_text_document.bin", four);
    assert_string_equal(one, four);
    file_md5("one_text_document.idx", one), file_md5("four_text_document.idx", four);
    assert_string_equal(one, four);
    IndexedDataset d;
    assert_ok(indexed_open("one_text_document", &d));
    assert_int_equal(d.dtype, INDEXED_I32);
    int64_t ids[6];
    indexed_tokens(&d, 40000 + 12345, 0, 6, ids);
    for (int i = 0; i < 5; i++) assert_int_equal(ids[i], "12345"[i] + 1);
    indexed_close(&d);
    str_free(&text);
}

TEST(sentences_become_sequences) {
    write_text("sentences.jsonl",
               "{\"text\": \"We met Mr. Lee. It was\\nlate!  \\n\\nA title\\n\\nThe end\"}\n"
               "{\"text\": \"It was\\r\\nlate!\\r\\n\\r\\nThe end\"}\n"
               "{\"text\": [\"Already. Split.\", \"Yes.\"]}\n"
               "{\"text\": \" \\n \"}\n"
               "{\"text\": \"\u00dcber z.B. Br\u00fccken. Ja.\"}\n");
    const char *const inputs[] = {"sentences.jsonl"};
    PreprocessConfig c = config(inputs, 1, "split");
    c.split_sentences = c.append_eod = true, c.lang = "English";
    PreprocessStats stats;
    assert_ok(preprocess_run(&c, &stats));
    assert_dump("split_text_sentence", "We met Mr. Lee.|It was\nlate!|A title|The end$|\n"
                                       "It was\r\nlate!|The end$|\n"
                                       "Already. Split.|Yes.$|\n"
                                       "\n"
                                       "\u00dcber z.B.|Br\u00fccken.|Ja.$|\n");
    c.keep_newlines = true, c.output_prefix = "kept", c.append_eod = false, c.lang = "de";
    assert_ok(preprocess_run(&c, &stats));
    assert_dump("kept_text_sentence", "We met Mr. Lee. |It was\nlate!  \n\n|A title\n\n|The end|\n"
                                      "It was\r\nlate!\r\n\r\n|The end|\n"
                                      "Already. Split.|Yes.|\n"
                                      " \n |\n"
                                      "\u00dcber z.B. Br\u00fccken. |Ja.|\n");
    c.lang = "klingon";
    assert_err(preprocess_run(&c, &stats), "--lang klingon is unknown");
}

enum { LINES = 20000 };

/* Returns lines that compress badly, so that every decoder fills its buffers several times. */
static Str many_lines(void) {
    Str text = {0};
    for (uint32_t i = 0; i < LINES; i++) str_printf(&text, "%08x%u\n", i * 2654435761u, i);
    return text;
}

static void gzip_append(const char *path, const char *bytes, size_t n) {
    gzFile f = gzopen(path, "ab");
    assert_int_equal(gzwrite(f, bytes, (unsigned)n), n);
    assert_int_equal(gzclose(f), Z_OK);
}

TEST(compressed_files_are_text) {
    Str text = many_lines();
    const size_t half = text.len / 2, room = ZSTD_compressBound(text.len);
    assert_ok(file_write_atomic("lines.txt", text.s, text.len));
    gzip_append("lines.gz", text.s, half), gzip_append("lines.gz", text.s + half, text.len - half);
    char *packed = mem_alloc(2 * room);
    size_t n = ZSTD_compress(packed, room, text.s, half, 3);
    n += ZSTD_compress(packed + n, room, text.s + half, text.len - half, 3);
    assert_ok(file_write_atomic("lines.zst", packed, n));
    free(packed);
    char plain[33], other[33];
    PreprocessStats stats;
    const char *const names[] = {"lines.txt", "lines.gz", "lines.zst"};
    for (int i = 0; i < 3; i++) {
        PreprocessConfig c = config(&names[i], 1, "lines");
        c.kind = PREPROCESS_TEXT_PARAGRAPHS, c.overwrite = true;
        assert_ok(preprocess_run(&c, &stats));
        assert_int_equal(stats.bytes, file_size(names[i]));
        file_md5("lines_text_document.bin", i ? other : plain);
        if (i) assert_string_equal(other, plain);
        /* The last bytes are missing, or a byte in the middle of the gzip data has changed. */
        for (int damage = 0; damage < (i == 1 ? 2 : i == 2); damage++) {
            Str torn = {0};
            assert_ok(file_read(names[i], &torn));
            torn.s[torn.len / 2] ^= (char)(damage ? 0x10 : 0);
            assert_ok(file_write_atomic("torn", torn.s, torn.len - (damage ? 0 : 9)));
            str_free(&torn);
            c.inputs = (const char *const[]){"torn"};
            assert_err(preprocess_run(&c, &stats), "compressed data of 'torn' are damaged");
        }
    }
    const char *const dash[] = {"-"};
    PreprocessConfig c = config(dash, 1, "lines");
    c.kind = PREPROCESS_TEXT_PARAGRAPHS, c.overwrite = true;
    const int in = dup(STDIN_FILENO), file = open("lines.zst", O_RDONLY);
    assert_int_equal(dup2(file, STDIN_FILENO), STDIN_FILENO);
    assert_ok(preprocess_run(&c, &stats));
    if (in >= 0) dup2(in, STDIN_FILENO), close(in);
    close(file);
    file_md5("lines_text_document.bin", other);
    assert_string_equal(other, plain);
    str_free(&text);
}

int main(void) { return run_all_tests(enter_folder, leave_folder); }
