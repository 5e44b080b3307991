#include "train/events.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

struct Events {
    char *path;
    int fd;
};

/* Returns the CRC-32C (Castagnoli). Processes one bit at a time, because an event has only about fifty bytes. */
static uint32_t crc32c(const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static uint32_t masked_crc(const void *bytes, size_t n) {
    uint32_t crc = crc32c(bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ---- protocol buffers ---- */

enum WireType { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(Str *s, uint64_t x) {
    for (; x >= 128; x >>= 7) str_add(s, &(unsigned char){(unsigned char)(x | 128)}, 1);
    str_add(s, &(unsigned char){(unsigned char)x}, 1);
}

static void put_key(Str *s, unsigned field, enum WireType type) { put_varint(s, field << 3 | type); }

static void put_bytes(Str *s, unsigned field, const void *bytes, size_t n) {
    put_key(s, field, BYTES);
    put_varint(s, n);
    str_add(s, bytes, n);
}

/* Field numbers. Event: 1 wall_time double, 2 step int64, 3 file_version string, 5 summary. Summary: 1
 * repeated value. Value: 1 tag, 2 simple_value float, 8 tensor, 9 metadata (1 plugin_data: 1 plugin_name).
 * Tensor: 1 type, 2 shape (2 dim: 1 size), 8 repeated string_val. */
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_VERSION = 3,
    EVENT_SUMMARY = 5,
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_FLOAT = 2,
    VALUE_TENSOR = 8,
    VALUE_METADATA = 9,
    METADATA_PLUGIN = 1,
    PLUGIN_NAME = 1,
    TENSOR_TYPE = 1,
    TENSOR_SHAPE = 2,
    TENSOR_STRING = 8,
    SHAPE_DIM = 2,
    DIM_SIZE = 1,
    DT_STRING = 7
};

static void begin_event(Str *event) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double wall = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    put_key(event, EVENT_WALL_TIME, FIXED64);
    str_add(event, &wall, sizeof wall);
}

static Err write_record(Events *e, Str *event) {
    uint64_t length = event->len;
    uint32_t length_crc = masked_crc(&length, sizeof length), data_crc = masked_crc(event->s, event->len);
    Str record = {0};
    str_add(&record, &length, sizeof length);
    str_add(&record, &length_crc, sizeof length_crc);
    str_add(&record, event->s, event->len);
    str_add(&record, &data_crc, sizeof data_crc);
    Err err = file_write_all(e->fd, e->path, record.s, record.len);
    str_free(&record);
    str_free(event);
    return err;
}

Err events_open(const char *dir, Events **out) {
    *out = NULL;
    ERR_RETURN(file_mkdirs(dir));
    char host[64] = "localhost";
    gethostname(host, sizeof host - 1);
    Events *e = mem_zero(1, sizeof *e);
    e->path =
        mem_printf("%s/events.out.tfevents.%010lld.%s.%ld", dir, (long long)time(NULL), host, (long)getpid());
    e->fd = open(e->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    Err err = e->fd < 0 ? err_user("cannot create '%s'; check --tensorboard-dir and its permissions", e->path)
                        : ERR_OK;
    if (!err.code) {
        Str event = {0};
        begin_event(&event);
        put_bytes(&event, EVENT_VERSION, "brain.Event:2", strlen("brain.Event:2"));
        err = write_record(e, &event);
    }
    if (err.code)
        events_close(e);
    else
        *out = e;
    return err;
}

/* Writes an event with a summary of one value, and frees the value. */
static Err write_value(Events *e, int64_t step, Str *value) {
    Str summary = {0}, event = {0};
    put_bytes(&summary, SUMMARY_VALUE, value->s, value->len);
    begin_event(&event);
    put_key(&event, EVENT_STEP, VARINT);
    put_varint(&event, (uint64_t)step);
    put_bytes(&event, EVENT_SUMMARY, summary.s, summary.len);
    str_free(value);
    str_free(&summary);
    return write_record(e, &event);
}

Err events_scalar(Events *e, const char *tag, int64_t step, double value) {
    float x = (float)value;
    Str scalar = {0};
    put_bytes(&scalar, VALUE_TAG, tag, strlen(tag));
    put_key(&scalar, VALUE_FLOAT, FIXED32);
    str_add(&scalar, &x, sizeof x);
    return write_value(e, step, &scalar);
}

/* Like torch.utils.tensorboard's add_text, writes a text as a tensor of one string for the plugin "text". */
Err events_text(Events *e, const char *tag, int64_t step, const char *text) {
    Str name = {0}, value = {0}, plugin = {0}, metadata = {0}, dim = {0}, shape = {0}, tensor = {0};
    str_printf(&name, "%s/text_summary", tag);
    put_bytes(&value, VALUE_TAG, name.s, name.len);
    put_bytes(&plugin, PLUGIN_NAME, "text", strlen("text"));
    put_bytes(&metadata, METADATA_PLUGIN, plugin.s, plugin.len);
    put_bytes(&value, VALUE_METADATA, metadata.s, metadata.len);
    put_key(&dim, DIM_SIZE, VARINT);
    put_varint(&dim, 1);
    put_bytes(&shape, SHAPE_DIM, dim.s, dim.len);
    put_key(&tensor, TENSOR_TYPE, VARINT);
    put_varint(&tensor, DT_STRING);
    put_bytes(&tensor, TENSOR_SHAPE, shape.s, shape.len);
    put_bytes(&tensor, TENSOR_STRING, text, strlen(text));
    put_bytes(&value, VALUE_TENSOR, tensor.s, tensor.len);
    Str *const parts[] = {&name, &plugin, &metadata, &dim, &shape, &tensor};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) str_free(parts[i]);
    return write_value(e, step, &value);
}

void events_close(Events *e) {
    if (!e) return;
    if (e->fd >= 0) close(e->fd);
    free(e->path);
    free(e);
}
