#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/transport.h"

void comm_recorder_init(CommRecorder *r) {
    *r = (CommRecorder){.ring = mem_zero(COMM_RECORDS, sizeof *r->ring)};
    pthread_mutex_init(&r->lock, NULL);
}

void comm_recorder_free(CommRecorder *r) {
    pthread_mutex_destroy(&r->lock);
    free(r->ring);
}

int64_t comm_record_start(CommRecorder *r, const CommWork *w) {
    pthread_mutex_lock(&r->lock);
    int64_t number = r->count++;
    r->ring[number % COMM_RECORDS] =
        (CommRecord){.key = w->channel->key, .seq = w->seq, .started_ns = clock_ns(), .facts = w->facts};
    pthread_mutex_unlock(&r->lock);
    return number;
}

void comm_record_done(CommRecorder *r, int64_t number) {
    pthread_mutex_lock(&r->lock);
    if (number >= r->count - COMM_RECORDS) r->ring[number % COMM_RECORDS].done_ns = clock_ns();
    pthread_mutex_unlock(&r->lock);
}

bool comm_record_last(CommRecorder *r, CommRecord *out) {
    pthread_mutex_lock(&r->lock);
    int64_t count = r->count;
    if (count) *out = r->ring[(count - 1) % COMM_RECORDS];
    pthread_mutex_unlock(&r->lock);
    return count > 0;
}

bool comm_record_has(CommRecorder *r, const CommKey *key, int64_t seq) {
    bool found = false;
    pthread_mutex_lock(&r->lock);
    const int64_t first = r->count > COMM_RECORDS ? r->count - COMM_RECORDS : 0;
    for (int64_t i = r->count; i-- > first && !found;) {
        const CommRecord *at = &r->ring[i % COMM_RECORDS];
        found = at->seq >= seq && !memcmp(&at->key, key, sizeof *key);
    }
    pthread_mutex_unlock(&r->lock);
    return found;
}
