/* Marks inline functions that GPU kernels call too. */
#ifndef ISOTRON_BASE_HOST_DEVICE_H
#define ISOTRON_BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

#endif
