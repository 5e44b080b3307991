/* Tests the engine on the CPU (engine_alone.h), and that pages are neither lost nor shared. */
#include "unit/infer/engine_alone.h"

#include "infer/page_pool.h"

static Device *cpu(void) { return device_cpu(2); }

TEST(results_are_bitwise_those_of_a_request_alone) { assert_results_are_those_of_a_request_alone(cpu); }

/* A model of the pool: the owner of each page. */
TEST(a_page_has_one_owner) {
    enum { PAGES = 37, OWNERS = 8, STEPS = 1000000 };
    int64_t page[OWNERS][PAGES], n[OWNERS] = {0}, free_pages = PAGES;
    int owner[PAGES] = {0};
    PagePool pool = page_pool_new(PAGES);
    for (uint64_t i = 0; i < STEPS; i++) {
        const int who = (int)draw(1, 3 * i, OWNERS);
        const int64_t count = (int64_t)draw(1, 3 * i + 1, 9);
        if (draw(1, 3 * i + 2, 2)) {
            const bool fits = count <= free_pages && n[who] + count <= PAGES;
            if (n[who] + count > PAGES) continue;
            assert_int_equal(page_pool_take(&pool, count, page[who] + n[who]), fits);
            for (int64_t k = 0; fits && k < count; k++) {
                assert_int_equal(owner[page[who][n[who]]], 0);
                owner[page[who][n[who]++]] = who + 1;
            }
            free_pages -= fits ? count : 0;
        } else {
            page_pool_release(&pool, n[who], page[who]);
            for (int64_t k = 0; k < n[who]; k++) owner[page[who][k]] = 0;
            free_pages += n[who], n[who] = 0;
        }
        assert_int_equal(pool.n_free, free_pages);
    }
    page_pool_free(&pool);
}
