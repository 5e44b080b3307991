#include "data/parquet/parquet.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/mem.h"
#include "base/str.h"
#include "data/parquet/footer.h"
#include "data/parquet/values.h"

enum { DATA_PAGE = 0, DICTIONARY_PAGE = 2, DATA_PAGE_V2 = 3 }; /* PageType */
enum { RLE = 3 };                                              /* the encoding of levels */
enum { MAX_PAGE = 1 << 30, SMALL_PAGE = 64 << 20, MAX_RATIO = 1 << 15 };

typedef struct Buffer {
    unsigned char *bytes; /* owned */
    size_t size;
} Buffer;

typedef struct Column {
    const char *name;
    bool optional;
    int64_t codec;
    Bytes pages;          /* the unread pages of the row group */
    int64_t rows;         /* number of rows in the unread pages */
    int64_t page_rows;    /* number of unread rows in the current page */
    Runs levels;          /* definition levels: 0 for a row without a value, otherwise 1 */
    Strings strings;      /* the strings of the current page */
    Buffer page, indexed; /* the decompressed page, and the decompressed dictionary */
} Column;

struct Parquet {
    const char *path;
    FileMap map;
    ParquetFooter footer;
    int n;
    Column *columns; /* [n] */
    /* group: index of the next row group; rows: number of unread rows in the current group */
    int64_t group, rows;
    int64_t bytes;
};

static Err unreadable(const Parquet *p, const Column *c, const char *why) {
    return err_user("the column %s of the Parquet file '%s' cannot be read: %s; write the file again",
                    quote(c->name).s, p->path, why);
}

/* A page header, which includes the fields of the nested header for the page's type. */
typedef struct PageHeader {
    int64_t type, size, stored, crc, values, encoding, level_encoding, level_bytes, repetition_bytes;
    bool has_crc, compressed;
} PageHeader;

/* Reads the nested header for the page type: field 5 for data pages, 7 for dictionaries, and 8 for data pages V2. Each
 * of these headers numbers its fields differently. */
static void read_kind(Bytes *b, ThriftField kind, PageHeader *h) {
    const bool v2 = kind.id == 8;
    thrift_struct(b, kind);
    for (ThriftField f = {0}; thrift_next(b, &f);)
        if (f.id == 1)
            h->values = thrift_int(b, f);
        else if (f.id == (v2 ? 4 : 2))
            h->encoding = thrift_int(b, f);
        else if (f.id == 3 && kind.id == 5)
            h->level_encoding = thrift_int(b, f);
        else if (f.id == 5 && v2)
            h->level_bytes = thrift_int(b, f);
        else if (f.id == 6 && v2)
            h->repetition_bytes = thrift_int(b, f);
        else if (f.id == 7 && v2)
            h->compressed = thrift_int(b, f);
        else
            thrift_skip(b, f);
}

static PageHeader read_header(Bytes *b) {
    PageHeader h = {.type = -1, .size = -1, .stored = -1, .values = -1, .encoding = -1, .compressed = true};
    for (ThriftField f = {0}; thrift_next(b, &f);) switch (f.id) {
        case 1:
            h.type = thrift_int(b, f);
            break;
        case 2:
            h.size = thrift_int(b, f);
            break;
        case 3:
            h.stored = thrift_int(b, f);
            break;
        case 4:
            h.crc = thrift_int(b, f), h.has_crc = true;
            break;
        case 5:
        case 7:
        case 8:
            read_kind(b, f, &h);
            break;
        default:
            thrift_skip(b, f);
        }
    return h;
}

/* Sets `data` to the `size` uncompressed bytes of a page. Compressed data is decompressed into the buffer. */
static const char *unpack(int64_t codec, Bytes *data, int64_t size, Buffer *buffer) {
    const int64_t stored = data->end - data->at;
    if (codec == PARQUET_UNCOMPRESSED)
        return size == stored ? NULL : "a page is longer or shorter than its header says";
    if (size < 0 || size > MAX_PAGE || (size > SMALL_PAGE && size / MAX_RATIO > stored))
        return "a page exceeds 1 GiB, or 32768 times the size of its compressed data; make pages smaller";
    if ((size_t)size >= buffer->size) {
        free(buffer->bytes);
        buffer->size = (size_t)size + 1;
        buffer->bytes = mem_alloc(buffer->size);
    }
    if (size && !parquet_decompress(codec, data->at, (size_t)stored, buffer->bytes, (size_t)size))
        return "a page's compressed data are damaged";
    *data = (Bytes){buffer->bytes, buffer->bytes + size, false};
    return NULL;
}

static const char *open_dictionary(Column *c, const PageHeader *h, Bytes data) {
    const char *why = unpack(c->codec, &data, h->size, &c->indexed);
    return why ? why : strings_dictionary(&c->strings, data, h->encoding, h->values);
}

/* Opens a data page. Levels precede the values. In V1 pages, the levels begin with their length and are compressed
 * with the values. In V2 pages, the levels are not compressed. */
static const char *open_data(Column *c, const PageHeader *h, Bytes data) {
    static const char LEVELS[] = "a page's definition levels are longer than the page";
    const bool v2 = h->type == DATA_PAGE_V2;
    const unsigned char *p, *levels = data.at;
    uint64_t n = v2 ? (uint64_t)h->level_bytes : 0;
    int64_t size = h->size;
    if (h->values < 0 || h->values > c->rows) return "a page has more rows than its row group";
    if (v2) {
        if (!bytes_take(&data, (uint64_t)h->repetition_bytes, &p) || !bytes_take(&data, n, &levels))
            return LEVELS;
        size -= h->repetition_bytes + h->level_bytes;
    }
    const char *why = unpack(h->compressed ? c->codec : PARQUET_UNCOMPRESSED, &data, size, &c->page);
    if (why) return why;
    if (!v2 && c->optional) {
        n = bytes_little(&data, 4);
        if (h->level_encoding != RLE) return "a page's definition levels have the old encoding BIT_PACKED";
        if (!bytes_take(&data, n, &levels)) return LEVELS;
    }
    c->levels = (Runs){.in = {levels, levels + n, false}, .width = 1};
    c->rows -= h->values, c->page_rows = h->values;
    return strings_open(&c->strings, data, h->encoding);
}

/* Reads the next page of any type. */
static Err open_page(Parquet *p, Column *c) {
    Bytes data;
    if (c->pages.at == c->pages.end) return unreadable(p, c, "pages are missing");
    const PageHeader h = read_header(&c->pages);
    if (h.size < 0 || h.stored < 0 || !bytes_take(&c->pages, (uint64_t)h.stored, &data.at))
        return unreadable(p, c, "a page header is damaged, or longer than the column");
    data.end = c->pages.at, data.bad = false;
    if (data.end - p->map.bytes > p->bytes) p->bytes = data.end - p->map.bytes;
    if (h.has_crc && (uint32_t)h.crc != crc32_z(0, data.at, (size_t)h.stored))
        return unreadable(p, c, "the checksum of a page is wrong");
    const char *why = NULL; /* pages of other types have no values and are skipped */
    if (h.type == DICTIONARY_PAGE) why = open_dictionary(c, &h, data);
    if (h.type == DATA_PAGE || h.type == DATA_PAGE_V2) why = open_data(c, &h, data);
    return why ? unreadable(p, c, why) : ERR_OK;
}

static void open_group(Parquet *p) {
    const ParquetChunk *chunks = p->footer.chunks + p->group++ * p->n;
    p->rows = chunks->rows;
    for (int i = 0; i < p->n; i++) {
        Column *c = &p->columns[i];
        const unsigned char *begin = p->map.bytes + chunks[i].begin;
        c->pages = (Bytes){begin, begin + chunks[i].size, false};
        c->codec = chunks[i].codec, c->rows = chunks[i].rows, c->page_rows = 0;
        strings_free(&c->strings);
    }
}

static Err next_value(Parquet *p, Column *c, ParquetText *out) {
    uint32_t level = 1;
    while (!c->page_rows) ERR_RETURN(open_page(p, c));
    c->page_rows--;
    *out = (ParquetText){0};
    if (c->optional && (!runs_next(&c->levels, &level) || level > 1))
        return unreadable(p, c, "a page's definition levels are damaged");
    if (level && !strings_next(&c->strings, out))
        return unreadable(p, c, "a page has fewer strings than rows, or a damaged string");
    return ERR_OK;
}

Err parquet_next(Parquet *p, ParquetText *row, bool *more) {
    while (!p->rows && p->group < p->footer.groups) open_group(p);
    *more = p->rows > 0;
    if (!*more) p->bytes = (int64_t)p->map.size;
    for (int i = 0; i < p->n && *more; i++) ERR_RETURN(next_value(p, &p->columns[i], &row[i]));
    p->rows -= *more;
    return ERR_OK;
}

Err parquet_open(const char *path, const char *const *columns, int n, Parquet **out) {
    Parquet *p = mem_zero(1, sizeof *p);
    p->path = path, p->n = n;
    p->columns = mem_zero((size_t)n, sizeof *p->columns);
    Err e = file_map(path, &p->map);
    if (!e.code) e = parquet_footer_read(path, &p->map, columns, n, &p->footer);
    if (e.code) {
        parquet_close(p);
        return e;
    }
    for (int i = 0; i < n; i++)
        p->columns[i].name = columns[i], p->columns[i].optional = p->footer.optional[i];
    *out = p;
    return ERR_OK;
}

int64_t parquet_bytes(const Parquet *p) { return p->bytes; }

void parquet_close(Parquet *p) {
    for (int i = 0; i < p->n; i++) {
        strings_free(&p->columns[i].strings);
        free(p->columns[i].page.bytes), free(p->columns[i].indexed.bytes);
    }
    free(p->columns);
    parquet_footer_free(&p->footer);
    file_unmap(&p->map);
    free(p);
}
