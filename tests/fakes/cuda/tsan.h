// What the thread sanitizer is told about the fake. A GPU shares no locks with the program: what orders its work is the
// call that queued it, the dependencies between streams, and the query or wait that saw it end. The lock inside the
// fake would add orders that no hardware gives, and hide a caller that touches memory too early; so the workers'
// bookkeeping is invisible to the sanitizer, and the true orders are stated one by one.
#pragma once

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FAKE_CUDA_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define FAKE_CUDA_TSAN 1
#endif

#ifdef FAKE_CUDA_TSAN
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace fake_cuda {

#ifdef FAKE_CUDA_TSAN
inline void stop_watching() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
}
inline void start_watching() {
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
inline void happens_before(const void* token) {
  __tsan_release(const_cast<void*>(token));
}
inline void happens_after(const void* token) {
  __tsan_acquire(const_cast<void*>(token));
}
#else
inline void stop_watching() {}
inline void start_watching() {}
inline void happens_before(const void*) {}
inline void happens_after(const void*) {}
#endif

}  // namespace fake_cuda
