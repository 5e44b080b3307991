/* HOST_DEVICE marks inline functions that GPU kernels also call. */
#pragma once

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif
