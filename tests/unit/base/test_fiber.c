/* Tests that fibers run in the order that their caller selects, and keep their variables while they are
 * paused. */
#include "unit/cmocka_all.h"

#include <string.h>

#include "base/fiber.h"

enum { FIBERS = 3, TURNS = 4 };

typedef struct Player {
    Fiber *fiber;
    int number, turns;
    char *log;
} Player;

/* Pauses in a nested call while floating-point variables are live. */
static double pause_below(Player *p, int depth, double x) {
    volatile char memory[16384];
    memory[0] = (char)depth;
    if (depth) return pause_below(p, depth - 1, x * 1.5) + memory[0];
    p->log[strlen(p->log)] = (char)('a' + p->number);
    fiber_pause(p->fiber);
    return x;
}

static void play(void *arg) {
    Player *p = arg;
    double sum = 0;
    for (int i = 0; i < p->turns; i++) sum += pause_below(p, 100, p->number);
    double power = p->number;
    for (int i = 0; i < 100; i++) power *= 1.5;
    assert_float_equal(sum, p->turns * (power + 5050), power * 1e-12);
    p->log[strlen(p->log)] = (char)('A' + p->number);
}

TEST(fibers_take_turns) {
    Fiber *fibers[FIBERS];
    for (int i = 0; i < FIBERS; i++) fibers[i] = fiber_new();
    for (int again = 0; again < 2; again++) { /* a fiber that has ended can be started again */
        char log[64] = "";
        Player players[FIBERS];
        bool paused[FIBERS];
        for (int i = 0; i < FIBERS; i++) {
            players[i] = (Player){fibers[i], i, TURNS - i, log};
            fiber_begin(fibers[i], play, &players[i]);
            paused[i] = true;
        }
        for (int left = FIBERS; left > 0;)
            for (int i = 0; i < FIBERS; i++)
                if (paused[i] && !(paused[i] = fiber_resume(fibers[i]))) left--;
        assert_string_equal(log, "abcabcabCaBA");
    }
    for (int i = 0; i < FIBERS; i++) fiber_free(fibers[i]);
    fiber_free(NULL);
}
