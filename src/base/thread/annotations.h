// SPDX-License-Identifier: Apache-2.0
// Which mutex guards what, told to clang's -Wthread-safety (https://clang.llvm.org/docs/ThreadSafetyAnalysis.html, from
// where the names are). Other compilers see nothing. `./test checks` runs the analysis.
#pragma once

#if defined(__clang__)
#define VRUN_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define VRUN_THREAD_ANNOTATION(x)
#endif

// Of a class: it is a lock, or holds one as long as it lives.
#define VRUN_CAPABILITY(name) VRUN_THREAD_ANNOTATION(capability(name))
#define VRUN_SCOPED_CAPABILITY VRUN_THREAD_ANNOTATION(scoped_lockable)

// Of a member: only who holds the mutex may use it, or what it points to.
#define VRUN_GUARDED_BY(mutex) VRUN_THREAD_ANNOTATION(guarded_by(mutex))
#define VRUN_PT_GUARDED_BY(mutex) VRUN_THREAD_ANNOTATION(pt_guarded_by(mutex))

// Of a function: its caller holds the mutexes, or must not hold them.
#define VRUN_REQUIRES(...) VRUN_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define VRUN_EXCLUDES(...) VRUN_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

// Of a function: it takes the mutexes, or gives them back.
#define VRUN_ACQUIRE(...) VRUN_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define VRUN_RELEASE(...) VRUN_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define VRUN_TRY_ACQUIRE(...) VRUN_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))

// Of a function that returns a reference to a mutex.
#define VRUN_RETURN_CAPABILITY(mutex) VRUN_THREAD_ANNOTATION(lock_returned(mutex))

// Of a function whose locking the analysis cannot follow. A comment says why it is right.
#define VRUN_NO_THREAD_SAFETY_ANALYSIS VRUN_THREAD_ANNOTATION(no_thread_safety_analysis)
