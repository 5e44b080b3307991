#include "ckpt/shard_boxes.h"

#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"
#include "param/quantized.h"

bool held_is_stored(const Param *p, const CkptItem *item) {
    const unsigned flags = p->spec.flags;
    return (!*item->suffix || param_is_trained(p)) && (flags & item->with) == item->with &&
           !(flags & item->without) && (!item->each || param_is_quantized(p));
}

/* Returns the element's index in the registry's flat layout. */
static int64_t element_of(const Param *p, int part, int64_t row, int64_t column) {
    return p->offset + param_memory_row(p, part, row) * p->columns + column - p->first_column;
}

/* Returns the index of the first range that ends after the element. */
static int range_of(const CkptItem *item, int64_t element) {
    int low = 0, high = item->n_ranges;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (item->ranges[middle].end <= element)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

char *held_at(const Param *p, int part, const CkptItem *item, int64_t row, int64_t column) {
    const int64_t element = element_of(p, part, row, column), size = (int64_t)dtype_size(item->dtype);
    if (item->each) return (char *)item->flat + (element - p->offset) * size;
    if (!item->ranges) return (char *)item->flat + element * size;
    const int k = range_of(item, element);
    CHECK(k < item->n_ranges && item->ranges[k].begin <= element, "'%s': element %lld is in no range",
          p->spec.name, (long long)element);
    const FlatRange *r = &item->ranges[k];
    return (char *)(r->on_host ? item->host : item->flat) + (r->at + element - r->begin) * size;
}

int64_t held_run(const Param *p, int part, const CkptItem *item, const Box *b, int64_t row) {
    const int64_t bytes = b->shape[1] * (int64_t)dtype_size(item->dtype), most = VIEW_BYTES / bytes;
    const char *at = held_at(p, part, item, b->offset[0] + row, b->offset[1]);
    int64_t n = 1;
    while (n < most && row + n < b->shape[0] &&
           held_at(p, part, item, b->offset[0] + row + n, b->offset[1]) == at + n * bytes)
        n++;
    return n;
}

typedef struct Boxes {
    Box *at;
    int64_t n;
} Boxes;

/* Adds a box. If the last box on the list has the same columns and ends at the previous row, extends that box
 * instead. */
static void shard_boxes_add(Boxes *list, Box b) {
    Box *last = list->n ? &list->at[list->n - 1] : NULL;
    if (last && last->offset[1] == b.offset[1] && last->shape[1] == b.shape[1] &&
        last->offset[0] + last->shape[0] == b.offset[0]) {
        last->shape[0] += b.shape[0];
        return;
    }
    if (!(list->n & (list->n - 1))) list->at = mem_grow(list->at, (size_t)list->n * 2 + 1, sizeof b);
    list->at[list->n++] = b;
}

static void add_row(Boxes *list, const Param *p, int part, const CkptItem *item, int64_t row, const Box *b) {
    const int64_t begin = element_of(p, part, row, b->offset[1]), end = begin + b->shape[1];
    for (int k = range_of(item, begin); k < item->n_ranges && item->ranges[k].begin < end; k++) {
        const FlatRange *r = &item->ranges[k];
        const int64_t from = r->begin > begin ? r->begin : begin, to = r->end < end ? r->end : end;
        shard_boxes_add(list, (Box){{row, b->offset[1] + from - begin}, {1, to - from}});
    }
}

int64_t held_boxes(const Param *p, int part, const CkptItem *item, Box **boxes) {
    Boxes list = {0};
    for (int i = 0; i < param_boxes(p, part); i++) {
        const Box b = param_box(p, part, i);
        if (!item->ranges) shard_boxes_add(&list, b);
        for (int64_t k = 0; item->ranges && k < b.shape[0]; k++)
            add_row(&list, p, part, item, b.offset[0] + k, &b);
    }
    *boxes = list.at;
    return list.n;
}
