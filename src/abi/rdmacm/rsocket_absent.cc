// Until src/rsocket is there: programs that import its functions load, and calling one fails.
#include <cerrno>

#include "abi/rdmacm/errors.h"

#define VERBENA_ABSENT(name)                                    \
  extern "C" VERBENA_EXPORT __attribute__((weak)) long name() { \
    errno = ENOSYS;                                             \
    return -1;                                                  \
  }

VERBENA_ABSENT(raccept)
VERBENA_ABSENT(rbind)
VERBENA_ABSENT(rclose)
VERBENA_ABSENT(rconnect)
VERBENA_ABSENT(rfcntl)
VERBENA_ABSENT(rgetpeername)
VERBENA_ABSENT(rgetsockname)
VERBENA_ABSENT(rgetsockopt)
VERBENA_ABSENT(riomap)
VERBENA_ABSENT(riounmap)
VERBENA_ABSENT(riowrite)
VERBENA_ABSENT(rlisten)
VERBENA_ABSENT(rpoll)
VERBENA_ABSENT(rread)
VERBENA_ABSENT(rreadv)
VERBENA_ABSENT(rrecv)
VERBENA_ABSENT(rrecvfrom)
VERBENA_ABSENT(rrecvmsg)
VERBENA_ABSENT(rselect)
VERBENA_ABSENT(rsend)
VERBENA_ABSENT(rsendmsg)
VERBENA_ABSENT(rsendto)
VERBENA_ABSENT(rsetsockopt)
VERBENA_ABSENT(rshutdown)
VERBENA_ABSENT(rsocket)
VERBENA_ABSENT(rwrite)
VERBENA_ABSENT(rwritev)
