#include "data/parquet/footer.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "data/parquet/thrift.h"

enum { MAGIC = 4, TAIL = 8, SHOWN = 12 };
enum { BYTE_ARRAY = 6 }; /* a Type in parquet.thrift */
enum { REQUIRED, OPTIONAL, REPEATED };

typedef struct Wanted {
    const char *name;
    int64_t leaf;        /* index among a row group's columns, or -1 if the column was not found */
    const char *problem; /* why the column cannot be read, or NULL if it can */
} Wanted;

typedef struct Reader {
    Wanted *wanted; /* [n] */
    int n;
    int64_t file_size;
    Str strings; /* names of the columns that could be read, for an error message */
    int count_strings;
    bool encrypted, damaged;
    ParquetFooter *out;
} Reader;

/* ---- schema: the tree of columns, depth first ---- */

typedef struct Element {
    int64_t type; /* -1 if the element is not a leaf */
    int64_t repetition, children;
    Bytes name;
} Element;

static Element read_element(Bytes *b) {
    Element e = {.type = -1};
    for (ThriftField f = {0}; thrift_next(b, &f);) switch (f.id) {
        case 1:
            e.type = thrift_int(b, f);
            break;
        case 3:
            e.repetition = thrift_int(b, f);
            break;
        case 4:
            e.name = thrift_binary(b, f);
            break;
        case 5:
            e.children = thrift_int(b, f);
            break;
        default:
            thrift_skip(b, f);
        }
    return e;
}

static void read_column(Reader *r, const Element *e, int64_t leaf) {
    const char *problem = e->type < 0 || e->repetition == REPEATED
                              ? "is nested or repeated; write its strings as a top-level column"
                          : e->type != BYTE_ARRAY ? "has no strings; write it as a column of strings"
                                                  : NULL;
    const char *name = (const char *)e->name.at;
    const size_t length = (size_t)(e->name.end - e->name.at);
    if (!problem && r->count_strings++ < SHOWN) {
        str_puts(&r->strings, r->strings.len ? ", " : "");
        str_quote(&r->strings, name, length);
    }
    for (int i = 0; i < r->n; i++) {
        Wanted *w = &r->wanted[i];
        if (w->leaf >= 0 || strlen(w->name) != length || memcmp(w->name, name, length)) continue;
        w->leaf = leaf, w->problem = problem;
        r->out->optional[i] = e->repetition == OPTIONAL;
    }
}

static void read_schema(Reader *r, Bytes *b, ThriftField f) {
    const int64_t n = (int64_t)thrift_structs(b, f);
    int64_t inside = 0, leaf = 0; /* inside: number of elements still to read in a nested column */
    for (int64_t i = 0; i < n && !b->bad; i++) {
        const Element e = read_element(b);
        if (e.children < 0 || e.children > n - inside) bytes_fail(b);
        if (b->bad || !i) continue; /* the first element is the root, which is skipped */
        if (!inside) read_column(r, &e, leaf);
        inside += e.children - (inside > 0);
        leaf += e.type >= 0;
    }
}

/* ---- row groups ---- */

typedef struct Metadata {
    int64_t codec, values, size, data, dictionary; /* data and dictionary are offsets in the file */
} Metadata;

static Metadata read_metadata(Bytes *b) {
    Metadata m = {.codec = -1, .values = -1, .size = -1, .data = -1};
    for (ThriftField f = {0}; thrift_next(b, &f);) switch (f.id) {
        case 4:
            m.codec = thrift_int(b, f);
            break;
        case 5:
            m.values = thrift_int(b, f);
            break;
        case 7:
            m.size = thrift_int(b, f);
            break;
        case 9:
            m.data = thrift_int(b, f);
            break;
        case 11:
            m.dictionary = thrift_int(b, f);
            break;
        default:
            thrift_skip(b, f);
        }
    return m;
}

static ParquetChunk read_chunk(Reader *r, Bytes *b, Wanted *w) {
    Metadata m = {.size = -1};
    for (ThriftField f = {0}; thrift_next(b, &f);) {
        if (f.id == 3) {
            thrift_struct(b, f);
            m = read_metadata(b);
            continue;
        }
        if (f.id == 1) w->problem = "is stored in another file; write a single file";
        if (f.id == 8 || f.id == 9) r->encrypted = true;
        thrift_skip(b, f);
    }
    /* Some writers set the offset to 0 if there is no dictionary. */
    const int64_t begin = m.dictionary > 0 && m.dictionary < m.data ? m.dictionary : m.data;
    if (m.size < 0 || begin < MAGIC || begin > r->file_size || m.size > r->file_size - begin)
        return (ParquetChunk){.begin = -1, .rows = m.values};
    if (!w->problem && !parquet_codec_can(m.codec)) w->problem = parquet_codec_problem(m.codec);
    return (ParquetChunk){begin, m.size, m.values, m.codec};
}

static void read_group(Reader *r, Bytes *b) {
    ParquetFooter *out = r->out;
    const size_t n = (size_t)r->n;
    out->chunks = mem_grow(out->chunks, ((size_t)out->groups + 1) * n, sizeof *out->chunks);
    ParquetChunk *chunks = out->chunks + (size_t)out->groups++ * n;
    for (size_t c = 0; c < n; c++) chunks[c] = (ParquetChunk){.rows = -1};
    int64_t rows = -1;
    for (ThriftField f = {0}; thrift_next(b, &f);) {
        if (f.id == 1) {
            const int64_t columns = (int64_t)thrift_structs(b, f);
            for (int64_t leaf = 0; leaf < columns && !b->bad; leaf++) {
                size_t c = 0;
                while (c < n && r->wanted[c].leaf != leaf) c++;
                if (c < n)
                    chunks[c] = read_chunk(r, b, &r->wanted[c]);
                else
                    thrift_skip(b, (ThriftField){.type = THRIFT_STRUCT});
            }
        } else if (f.id == 3)
            rows = thrift_int(b, f);
        else
            thrift_skip(b, f);
    }
    /* An empty row group need not have pages or columns. */
    for (size_t c = 0; c < n; c++)
        r->damaged |= rows ? rows < 0 || chunks[c].rows != rows || chunks[c].begin < 0 : chunks[c].rows > 0;
}

static void read_file(Reader *r, Bytes *b) {
    for (ThriftField f = {0}; thrift_next(b, &f);) switch (f.id) {
        case 2:
            read_schema(r, b, f);
            break;
        case 4:
            for (uint64_t n = thrift_structs(b, f); n && !b->bad; n--) read_group(r, b);
            break;
        default:
            thrift_skip(b, f);
        }
}

static Err judge(const Reader *r, const char *path, bool bad) {
    for (int i = 0; i < r->n && !bad; i++) {
        const Wanted *w = &r->wanted[i];
        if (w->leaf < 0)
            return err_user("the Parquet file '%s' has no column %s; its columns of strings are: %s%s", path,
                            quote(w->name).s, r->strings.len ? r->strings.s : "none",
                            r->count_strings > SHOWN ? ", ..." : "");
        if (w->problem)
            return err_user("the column %s of the Parquet file '%s' %s", quote(w->name).s, path, w->problem);
    }
    if (!bad && r->encrypted)
        return err_user("the Parquet file '%s' is encrypted; write it without encryption", path);
    if (bad || r->damaged)
        return err_user("the footer of the Parquet file '%s' is damaged; copy or write the file again", path);
    return ERR_OK;
}

Err parquet_footer_read(const char *path, const FileMap *map, const char *const *columns, int n,
                        ParquetFooter *out) {
    *out = (ParquetFooter){0};
    if (map->size < MAGIC + TAIL || memcmp(map->bytes + map->size - MAGIC, "PAR", MAGIC - 1))
        return err_user("the Parquet file '%s' has no footer: its end is missing; copy or write it again",
                        path);
    const unsigned char *end = map->bytes + map->size;
    if (end[-1] == 'E')
        return err_user("the Parquet file '%s' is encrypted; write it without encryption", path);
    Bytes tail = {end - TAIL, end, false};
    const uint64_t length = bytes_little(&tail, 4);
    if (length > map->size - MAGIC - TAIL)
        return err_user("the Parquet file '%s' is damaged: its footer is longer than the file; copy it again",
                        path);
    Bytes b = {end - TAIL - length, end - TAIL, false};
    Reader r = {.n = n, .file_size = (int64_t)(map->size - TAIL - length), .out = out};
    r.wanted = mem_zero((size_t)n, sizeof *r.wanted);
    out->optional = mem_zero((size_t)n, sizeof *out->optional);
    for (int i = 0; i < n; i++) r.wanted[i] = (Wanted){.name = columns[i], .leaf = -1};
    read_file(&r, &b);
    const Err e = judge(&r, path, b.bad);
    str_free(&r.strings), free(r.wanted);
    return e;
}

void parquet_footer_free(ParquetFooter *f) { free(f->chunks), free(f->optional); }
