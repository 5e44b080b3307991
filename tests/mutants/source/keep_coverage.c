/* Linked into the instrumented programs, so that coverage is also written if a process ends with _exit() or
 * abort(). */
void __gcov_dump(void);
_Noreturn void __real__exit(int status);
_Noreturn void __real_abort(void);
_Noreturn void __wrap__exit(int status);
_Noreturn void __wrap_abort(void);

void __wrap__exit(int status) {
    __gcov_dump();
    __real__exit(status);
}

void __wrap_abort(void) {
    __gcov_dump();
    __real_abort();
}
