/* Facts about this build. */
#pragma once

const char *isotron_version(void); /* such as "0.1.0" */
/* Returns the commit from which the program was built: 12 hexadecimal digits, followed by "-dirty" if tracked
 * files had changes, or "unknown" if it was built outside a repository. isotron_commit is in a separate library,
 * `commit`, so that after a commit only train and the layers above it are relinked. */
const char *isotron_commit(void);
const char *isotron_compiler(void);  /* such as "GNU 12.2.0" */
const char *isotron_flags(void);     /* such as "-O3 -g -march=native" */
const char *isotron_devices(void);   /* "cpu", or the GPU architectures, such as "cpu, cuda (80 90a)" */
const char *isotron_libraries(void); /* "OpenBLAS 0.3.21, MPI 3.1, CUDA 13.0.48, cuDNN 9.14.0", or "no MPI" */
