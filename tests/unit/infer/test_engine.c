/* Tests the engine on the CPU (engine_alone.h), and that pages are neither lost nor shared. */
#include "unit/infer/engine_alone.h"

#include "infer/page_pool.h"

static Device *cpu(void) { return device_cpu(2); }

TEST(results_are_bitwise_those_of_a_request_alone) { assert_results_are_those_of_a_request_alone(cpu); }

TEST(requests_share_pages_only_with_their_salt) {
    static Case c;
    static const uint64_t SALTS[] = {0, 1, 1, 0, 2};
    static const int64_t SHARED[] = {0, 0, PAGE, 2 * PAGE, 2 * PAGE};
    case_init(&c, STYLES[0], cpu());
    Engine *e = engine_open(
        c.m,
        (EngineLimits){.page = PAGE, .pages = 10, .requests = 1, .tokens = LONGEST, .shares_prefixes = true});
    Request r = c.request[0];
    r.n = PAGE + 1, r.max_new_tokens = 1;
    for (size_t i = 0; i < sizeof SALTS / sizeof *SALTS; i++) {
        r.salt = SALTS[i];
        assert_ok(engine_add(e, &r));
        while (engine_step(e, take, c.got)) continue;
        assert_int_equal(engine_counts(e).shared, SHARED[i]);
        c.got[0].ended = c.got[0].n = 0;
    }
    engine_free(e);
    case_free(&c);
}

/* A model of the pool: the users of each page, and the tokens of each named page, of which there are few so that pages
 * are shared. */
TEST(a_page_has_one_content) {
    enum { PAGES = 37, OWNERS = 8, STEPS = 1000000, WIDTH = 2 };
    int64_t page[OWNERS][PAGES], n[OWNERS] = {0}, users[PAGES] = {0}, unused = PAGES, found = 0;
    int32_t tokens[PAGES][WIDTH];
    uint64_t before[PAGES], number[PAGES] = {0};
    PagePool *pool = page_pool_new(PAGES);
    for (uint64_t i = 0; i < STEPS; i++) {
        const int who = (int)draw(1, 4 * i, OWNERS);
        const int64_t count = 1 + (int64_t)draw(1, 4 * i + 1, 8);
        const int32_t content[WIDTH] = {(int32_t)draw(1, 4 * i + 1, 5), (int32_t)draw(1, 4 * i + 2, 3)};
        int64_t *own = page[who], last = n[who] ? own[n[who] - 1] : -1;
        PageName name = {n[who] > 1 ? number[own[n[who] - 2]] : 7, content, WIDTH};
        switch (draw(1, 4 * i + 3, 4)) {
        case 0:
            if (n[who] + count > PAGES) continue;
            assert_int_equal(page_pool_take(pool, count, own + n[who]), count <= unused);
            for (int64_t k = 0; count <= unused && k < count; k++) {
                assert_int_equal(users[own[n[who] + k]]++, 0);
                number[own[n[who] + k]] = 0;
            }
            if (count <= unused) n[who] += count, unused -= count;
            break;
        case 1:
            if (last < 0 || number[last] || !name.before) continue;
            const uint64_t got = page_pool_name(pool, last, &name);
            for (int64_t k = 0; k < PAGES; k++)
                if (number[k] == got) last = -1; /* another page has this name */
            if (last < 0) continue;
            number[last] = got, before[last] = name.before;
            memcpy(tokens[last], content, sizeof content);
            break;
        case 2:
            if (n[who] == PAGES) continue;
            name.before = last < 0 ? 7 : number[last];
            const int64_t hit = page_pool_find(pool, &name, &(uint64_t){0});
            int64_t want = -1;
            for (int64_t k = 0; k < PAGES; k++)
                if (number[k] && before[k] == name.before && !memcmp(tokens[k], content, sizeof content))
                    want = k;
            assert_int_equal(hit, want);
            if (hit < 0) continue;
            unused -= !users[hit]++, found++;
            own[n[who]++] = hit;
            break;
        default:
            page_pool_release(pool, n[who], own);
            for (int64_t k = 0; k < n[who]; k++) unused += !--users[own[k]];
            n[who] = 0;
        }
        assert_int_equal(page_pool_available(pool), unused);
    }
    assert_true(found > 1000);
    page_pool_free(pool);
}
