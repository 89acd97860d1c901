// PerThread: one object per thread, created at its first use and destroyed with its thread. The
// object of the thread that calls exit() stays: the library still sends the last messages of open
// sockets then, after the destructors of thread_local objects have run.
#pragma once

#include <pthread.h>

namespace verbena::rsocket {

template <typename T>
class PerThread {
 public:
  static T& get() {
    if (mine_ == nullptr) {
      static const Key key;
      mine_ = new T;
      pthread_setspecific(key.number, mine_);
    }
    return *mine_;
  }

 private:
  // Destructors of keys run when a thread ends, not when the process ends. If no key can be
  // created, the object only outlives its thread.
  struct Key {
    Key() {
      pthread_key_create(&number, [](void* object) {
        delete static_cast<T*>(object);
        mine_ = nullptr;
      });
    }
    pthread_key_t number{};
  };

  static inline thread_local T* mine_ = nullptr;
};

}  // namespace verbena::rsocket
