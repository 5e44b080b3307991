#include "unit/err.h"
#include "unit/model_helper.h"

#include <unistd.h>

#include "server/queue.h"

enum { PAGES = 4, CHOICES = 3, NEW = 60 };

static void turns(Queue *q, Fleet *e, int n) {
    for (int i = 0; i < n; i++) {
        queue_turn(q, e, 0);
        while (queue_counts(q).undelivered) usleep(100);
    }
}

static TestModel *small_model(void) {
    return test_model_on(setup_new("--num-layers 1 --hidden-size 8 --num-attention-heads 2 --vocab-size 9 "
                                   "--max-position-embeddings 64 "),
                         device_cpu(1));
}

/* If a connection reads no events and they become too many, its ticket is lost with all its choices. */
TEST(a_ticket_that_is_not_read_is_lost) {
    static const struct {
        int64_t bytes, ms;
        TicketState state;
    } CASES[] = {{1000, 0, TICKET_LOST}, {1 << 20, 0, TICKET_HAS_EVENTS}, {1000, 1000000, TICKET_HAS_EVENTS}};
    static const int32_t PROMPT[] = {1};
    TestModel *m = small_model();
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++) {
        const EngineLimits limits = {.page = 64, .pages = PAGES, .requests = CHOICES, .tokens = CHOICES};
        Request requests[CHOICES];
        for (int i = 0; i < CHOICES; i++)
            requests[i] = (Request){.prompt = PROMPT, .n = 1, .max_new_tokens = NEW};
        Fleet *e;
        Ticket *ticket;
        TicketEvents events;
        Err refused;
        int ends[2];
        assert_ok(fleet_new(m->model, &m->run, &limits, &e));
        assert_int_equal(pipe(ends), 0);
        Queue *q = queue_new((QueueLimits){CHOICES, 0, CASES[k].bytes, CASES[k].ms});
        assert_int_equal(queue_submit(q, requests, CHOICES, &ticket), QUEUE_TAKEN);
        turns(q, e, NEW / 2);
        assert_int_equal(ticket_wait(ticket, ends[0], 0, &events, &refused), CASES[k].state);
        const bool lost = CASES[k].state == TICKET_LOST;
        assert_int_equal(queue_counts(q).engine.running, lost ? 0 : CHOICES);
        assert_int_equal(queue_counts(q).ended[REASON_ABORT], lost ? CHOICES : 0);
        if (!lost) assert_int_equal(events.n, CHOICES * NEW / 2);
        ticket_events_free(&events);
        ticket_release(ticket);
        turns(q, e, 1);
        const QueueCounts counts = queue_counts(q);
        assert_int_equal(counts.ended[REASON_ABORT], CHOICES);
        assert_int_equal(counts.engine.free_pages, PAGES);
        assert_int_equal(counts.waiting + counts.tickets, 0);
        queue_free(q), fleet_free(e);
        close(ends[0]), close(ends[1]);
    }
    test_model_free(m);
}

/* A ticket is removed after its events are delivered, even if its connection has released it before. */
TEST(a_ticket_is_released_during_the_delivery) {
    enum { TICKETS = 200 };
    static const int32_t PROMPT[] = {1};
    const Request request = {.prompt = PROMPT, .n = 1, .max_new_tokens = NEW};
    const EngineLimits limits = {.page = 64, .pages = PAGES, .requests = CHOICES, .tokens = CHOICES};
    TestModel *m = small_model();
    Fleet *e;
    assert_ok(fleet_new(m->model, &m->run, &limits, &e));
    Queue *q = queue_new((QueueLimits){CHOICES, 0, 1000, 0});
    for (int i = 0; i < TICKETS; i++) {
        Ticket *ticket;
        assert_int_equal(queue_submit(q, &request, 1, &ticket), QUEUE_TAKEN);
        for (int turn = 0; turn < 1 + i % 4; turn++) queue_turn(q, e, 0);
        ticket_release(ticket);
    }
    turns(q, e, 1);
    assert_int_equal(queue_counts(q).tickets, 0);
    assert_int_equal(queue_counts(q).ended[REASON_ABORT], TICKETS);
    assert_int_equal(queue_counts(q).engine.free_pages, PAGES);
    queue_free(q), fleet_free(e);
    test_model_free(m);
}
