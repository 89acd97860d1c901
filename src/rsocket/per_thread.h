// One object of a type for each thread, made at its first use. It goes with its thread; but that of
// the thread which calls exit() stays, since the library still says goodbye for open sockets then,
// after destructors of thread_local objects have run.
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
  // Destructors of keys run when a thread ends, not when the process does. Without a key the object
  // outlives its thread, and no more.
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
