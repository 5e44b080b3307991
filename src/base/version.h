/* Facts of this build. */
#pragma once

const char *isotron_version(void); /* "0.1.0" */
/* The commit it was built from: 12 digits, followed by "-dirty" if tracked files had changes, or "unknown"
 * outside of a repository. It is in a separate library, `commit`, which only train and the layers above it
 * link, so that a new commit does not relink the other layers. */
const char *isotron_commit(void);
const char *isotron_compiler(void);  /* "GNU 12.2.0" */
const char *isotron_flags(void);     /* "-O3 -g -march=native" */
const char *isotron_devices(void);   /* "cpu", or "cpu, cuda (80 90a)" with the architectures */
const char *isotron_libraries(void); /* "OpenBLAS 0.3.21, MPI 3.1, CUDA 13.0.48, cuDNN 9.14.0", or "no MPI" */
