/* SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI of libtencache.so: with tencache_gpu.h and tencache_pinned.h, all that it exports. The
 * shim (libtencache_torch*.so), the Python package (ctypes) and any other host program use nothing
 * else. No function throws or longjmps.
 *
 * Life: tencache_set_option()* -> tencache_start() -> the rest. A program with libtorch calls
 * tencache_enable() instead of tencache_start(), and needs nothing of the rest. A process has one
 * runtime, which lives until the process ends. A forked child keeps a passive one, in which nothing
 * migrates. On the cpu backend its memory stays readable, and new allocations come from malloc.
 *
 * The option backend says whose memory tencache manages. On cpu, which tencache_start() also takes
 * for auto, that is DRAM, from tencache_allocate(). On cuda it is the memory of the GPUs that
 * tencache_open_gpu() opens (tencache_gpu.h). Then there is nothing to allocate here, and the gate
 * is that of all these GPUs.
 *
 * Threads: after tencache_start() has returned, any thread may call any function, unless a comment
 * says otherwise.
 */
#ifndef TENCACHE_H_
#define TENCACHE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TENCACHE_API __attribute__((visibility("default")))

/* Values of tencache_error.code; the same as tencache::StatusCode. */
enum {
  TENCACHE_OK = 0,
  TENCACHE_INVALID_ARGUMENT = 1,
  TENCACHE_OUT_OF_MEMORY = 2,
  TENCACHE_NO_SPACE = 3,
  TENCACHE_IO_ERROR = 4,
  TENCACHE_DATA_LOSS = 5,
  TENCACHE_UNAVAILABLE = 6,
  TENCACHE_FAILED_PRECONDITION = 7,
};

typedef struct tencache_error {
  int code;
  char message[2048];
} tencache_error;

/* ---- Options and life --------------------------------------------------------------------- */

/* The version of the library, "0.1.0". */
TENCACHE_API const char* tencache_version(void);

/* The option table as JSON (base/options.h). The text lives for ever. */
TENCACHE_API const char* tencache_option_table(void);

/* Sets every option to its variable TENCACHE_<NAME>, else to its default. Returns 0, or an error
 * code with *error filled and nothing set. Call before start. */
TENCACHE_API int tencache_read_environment(tencache_error* error);

/* Sets one option from text. Returns 0, or TENCACHE_INVALID_ARGUMENT for an unknown name or a text
 * that the option does not take. After start, only the value in force succeeds (for the backend
 * also "auto"); any other is TENCACHE_FAILED_PRECONDITION, and the message names both values. */
TENCACHE_API int tencache_set_option(const char* name, const char* text, tencache_error* error);

/* Checks one option's text without setting it. Returns 0, or an error code. */
TENCACHE_API int tencache_check_option(const char* name, const char* text, tencache_error* error);

/* Writes the option's value into `buffer`, as tencache_stats_json() does. The text is one that
 * tencache_set_option() takes, and the same for the same value ("on", "2GiB"). It is "" if no
 * option has that name. */
TENCACHE_API size_t tencache_option_text(const char* name, char* buffer, size_t bytes);

/* Parses a size such as "1.5GiB", as options take it. Returns 0, or an error code. */
TENCACHE_API int tencache_parse_bytes(const char* text, uint64_t* bytes, tencache_error* error);

/* Names this process in its messages, where several write to one place ("pid 4711"). The first name
 * counts; without one, tencache_start() takes the rank that a launcher has set (RANK, WORLD_SIZE).
 */
TENCACHE_API void tencache_set_label(const char* label);

/* Probes the machine, opens the tiers, starts the evictor; on the cuda backend tencache_open_gpu()
 * does most of that. A second call does nothing and returns 0. */
TENCACHE_API int tencache_start(tencache_error* error);
TENCACHE_API int tencache_is_started(void);

/* For C++ programs that link libtorch: puts tencache under PyTorch, with the options set so far.
 * Finds the libtorch that is loaded, loads the library of this package that fits its version, tests
 * that this libtorch is laid out as that library expects, and starts. The option backend is settled
 * first: auto is cuda where torch sees a GPU. The files of the options stats, trace and record are
 * tried now. Those of stats and trace are written when the process exits, with a summary on stderr.
 * Returns 0, or an error code with *error filled and nothing installed. A second call does nothing
 * and returns 0. Call it on one thread, before the first tensors exist: those stay outside the
 * budget, and existing CUDA tensors are refused. */
TENCACHE_API int tencache_enable(tencache_error* error);
/* The backend in force, "cpu" or "cuda"; "" before start. */
TENCACHE_API const char* tencache_backend(void);

/* ---- Memory ------------------------------------------------------------------------------- */

/* The address arena: an address outside it belongs to no extent. The gate's caller tests addresses
 * against it before it calls. Its size is 0 before start. On the cpu backend it is constant
 * afterwards. On cuda it covers the memory of all open GPUs and grows when one is opened: read the
 * base before the size, both atomically. */
typedef struct tencache_arena {
  uintptr_t base;
  size_t bytes;
} tencache_arena;
TENCACHE_API const tencache_arena* tencache_get_arena(void);

/* On the cpu backend: allocates at least `bytes` bytes, 64-byte aligned (4096 for extents),
 * contents undefined. NULL with *error filled (out of memory at the budget) on failure. bytes >
 * 0. */
TENCACHE_API void* tencache_allocate(size_t bytes, tencache_error* error);
/* Frees memory from tencache_allocate(). NULL is fine. */
TENCACHE_API void tencache_free(void* address);

/* ---- The gate ----------------------------------------------------------------------------- */

enum {
  TENCACHE_READ = 1,
  TENCACHE_WRITE = 2,
  /* The op names the extent but touches no byte of it (a view): it is marked as seen, not pinned.
   */
  TENCACHE_NAME = 4,
};

typedef struct tencache_access {
  const void* address; /* anywhere inside an extent; other addresses are ignored */
  uint32_t mode;       /* TENCACHE_READ | TENCACHE_WRITE, or TENCACHE_NAME */
} tencache_access;

/* Gives an op name its number, for the recorder and messages. The same name gives the same
 * number. */
TENCACHE_API uint32_t tencache_register_op(const char* name);

/* Begins an op on this thread. When this returns, every extent that the op reads or writes is
 * pinned until the matching close, and resident; on a GPU it may still be arriving, and the op's
 * stream waits for it. Memory that this thread allocates meanwhile is pinned too, until the
 * thread's outermost op closes or, on the cpu backend, until the thread frees it. Calls nest,
 * strictly last in, first out. The call never fails: it waits, exceeds the budget (counted), or, if
 * bytes are lost, ends the process with a message. */
TENCACHE_API void tencache_gate_open(uint32_t op, const tencache_access* accesses, uint32_t count);

/* Ends the op that this thread opened last. */
TENCACHE_API void tencache_gate_close(void);

/* How many ops this thread has open. */
TENCACHE_API uint32_t tencache_gate_depth(void);

/* Pins that outlive an op (collectives). Pins the extents, and with `and_inner` also everything
 * that this thread's open outermost op has allocated so far and not freed. NULL if there is nothing
 * to pin, as on a GPU whose current stream captures a CUDA graph: what a graph uses stays
 * resident. tencache_unhold() releases the pins, on any thread. */
typedef struct tencache_hold tencache_hold;
TENCACHE_API tencache_hold* tencache_hold_accesses(const tencache_access* accesses, uint32_t count,
                                                   int and_inner);
TENCACHE_API void tencache_unhold(tencache_hold* hold);

/* Announces that the program reads these extents by other means than an op (a checkpoint), until
 * tencache_end_reading(), on any thread. Writes the handle to *reading itself, since in Python an
 * exception can come before the caller has stored a result. Up to half of the budget is fetched and
 * stays. What goes beyond, and in a forked child everything, is read through cold mappings, and
 * compared with its hash now and at the end. Bytes that the disk has changed, or does not give, end
 * the process with a message. *reading is NULL on the cuda backend, and where no extent can be
 * cold. Addresses outside extents are ignored. */
typedef struct tencache_reading tencache_reading;
TENCACHE_API void tencache_begin_reading(const void* const* addresses, uint32_t count,
                                         tencache_reading** reading);
/* Ends what *reading holds, and sets it to NULL; does nothing where it is NULL. */
TENCACHE_API void tencache_end_reading(tencache_reading** reading);

/* Keeps these extents resident until they are freed (packed custom classes). */
TENCACHE_API void tencache_keep_resident(const tencache_access* accesses, uint32_t count);

/* Sets the calling thread's mode of stream capture (a CUstreamCaptureMode) and returns the former
 * mode. In relaxed mode the thread may query events while others capture. -1 where nothing was set:
 * no GPU is open, or its driver refuses. */
TENCACHE_API int tencache_exchange_capture_mode(int mode);

/* Tells that the program begins Optimizer.step, and not within a backward pass. Counts a step. */
TENCACHE_API void tencache_mark_step(void);

/* ---- What the shim gives the runtime ------------------------------------------------------- */

/* `arm` is called when use passes the attention mark: from then on the gate must be told about ops.
 * It is called once, or once for each GPU, with no lock held: mostly from inside an allocation, but
 * also when a GPU is opened or tencache_gpu_watch_ops() is called. Set it before start. If it is
 * NULL, no op is reported, and memory that no op has named never leaves. */
TENCACHE_API void tencache_set_arm_callback(void (*arm)(void));
/* The evictor calls `poll` before it looks for victims, so that the program unholds what has
 * completed. */
TENCACHE_API void tencache_set_poll_callback(void (*poll)(void));
/* On the cuda backend: `current_stream` tells the stream on which the calling thread's ops queue
 * their work on that GPU. If it is not set, or returns NULL, that is the default stream. */
TENCACHE_API void tencache_set_stream_callback(void* (*current_stream)(int ordinal));

/* For splitting list ops: the bytes of distinct extents among the accesses, and the bytes that one
 * chunk of a list op should name (a share of the budget). */
TENCACHE_API uint64_t tencache_distinct_bytes(const tencache_access* accesses, uint32_t count);
TENCACHE_API uint64_t tencache_chunk_bytes(void);
/* The calling thread is about to open ops that access these extents, in this order: the chunks of
 * one list op. What one chunk accesses is then fetched while the chunk before it computes. The list
 * takes the place of the one given before; call with a count of 0 when the list op ends, also if it
 * fails. */
TENCACHE_API void tencache_expect(const tencache_access* accesses, uint32_t count);
/* Begins a change of these extents in place that may not stop halfway. While the disk takes nothing
 * and not all of them can be resident at once, the call refuses, with *error filled and nothing
 * begun. Else it returns 0, and until tencache_end_in_place() this thread is refused no memory
 * because of the disk. Calls nest. */
TENCACHE_API int tencache_begin_in_place(const tencache_access* accesses, uint32_t count,
                                         tencache_error* error);
TENCACHE_API void tencache_end_in_place(void);
/* Size of the extent that contains the address; 0 if there is none. */
TENCACHE_API uint64_t tencache_extent_bytes(const void* address);
/* Where the extent that contains the address begins; NULL if there is none. Several small tensors
 * may lie in one extent. */
TENCACHE_API const void* tencache_extent_begin(const void* address);
TENCACHE_API int tencache_is_armed(void);

/* ---- What the user sees -------------------------------------------------------------------- */

/* Writes JSON into `buffer` (always terminated) and returns the size needed, terminator included.
 * If that is more than `bytes`, call again with a larger buffer. */
TENCACHE_API size_t tencache_stats_json(char* buffer, size_t bytes);
/* The life of the process so far in at most about a thousand samples, as JSON: arrays of one
 * length, at_s (seconds since start), device, live, host and disk (bytes in use), evicted, fetched,
 * disk_written and disk_read (bytes since start), stall_s and steps (since start). "{}" before
 * start and in forked children. */
TENCACHE_API size_t tencache_history_json(char* buffer, size_t bytes);
/* Gives memory that was freed and waits for reuse back to the system; returns its bytes. Waits for
 * the device. */
TENCACHE_API uint64_t tencache_empty_cache(void);
/* The peaks among the stats, and that of the excess over the budget, begin anew with what is used
 * now. */
TENCACHE_API void tencache_reset_peak_stats(void);
/* Writes what this machine offers (memory, cgroup, disk, io_uring, pagemap, GPUs). Works before
 * start. It starts the CUDA driver, if there is one, for the rest of the process, so do not call it
 * before a fork. */
TENCACHE_API size_t tencache_doctor_json(char* buffer, size_t bytes);
/* Notes what the program calls the extent that contains the address (a parameter's name), for
 * traces. The name ends with the extent; the last one counts. Does nothing for other addresses. */
TENCACHE_API void tencache_name_extent(const void* address, const char* name);
/* Writes the recorder's events to `path` as JSON lines (learn/trace_writer.h). The message of an
 * error is a clause without the path, as with the next two. */
TENCACHE_API int tencache_write_trace(const char* path, tencache_error* error);
/* Writes a file that the user asked for (platform/output_file.h). Needs no start. */
TENCACHE_API int tencache_write_file(const char* path, const char* text, size_t bytes,
                                     tencache_error* error);
/* Tries whether such a file could be written as things stand. Needs no start. */
TENCACHE_API int tencache_try_file(const char* path, tencache_error* error);
/* 1 if the path stands for a device, a pipe or an open descriptor, which all processes share. */
TENCACHE_API int tencache_is_shared_output(const char* path);
/* 1 if what is written under one of the names would take the place of what has the other. */
TENCACHE_API int tencache_is_same_output(const char* one, const char* other);
/* What became of the period that the option record asks for: 1 written, 0 none was learned, -1 none
 * could be written. */
TENCACHE_API int tencache_recorded(void);

/* ---- Planning ------------------------------------------------------------------------------- */

/* allocated_at and freed_at of a tensor that always exists. */
#define TENCACHE_NO_TICK UINT32_MAX

/* One period of a program, as learn/period_writer.h describes it, in flat arrays. */
typedef struct tencache_period {
  uint64_t fixed_bytes; /* on the device all the time, besides the tensors */
  uint32_t tensor_count;
  const uint64_t* tensor_bytes; /* tensor_count entries, as in the next two */
  const uint32_t* allocated_at; /* the op's number, or TENCACHE_NO_TICK */
  const uint32_t* freed_at;
  uint32_t op_count;
  const uint64_t* compute_ns;     /* op_count entries, as in the next one */
  const uint32_t* access_counts;  /* how many tensors the op names */
  const uint32_t* access_tensors; /* all ops, one after the other, as in the next */
  const uint8_t* access_writes;   /* 1: the op writes the tensor, 0: it only reads */
} tencache_period;

typedef struct tencache_machine {
  uint64_t budget_bytes;
  double read_bytes_per_s;
  double write_bytes_per_s;
  uint64_t read_fixed_ns; /* for each move, besides its bytes */
  uint64_t write_fixed_ns;
  int is_half_duplex; /* reads and writes take turns */
  /* Processor time that moving takes from a program that computes on all processors; 0: none. */
  double read_work_ns_per_byte;
  double write_work_ns_per_byte;
  double drop_work_ns_per_byte; /* for every byte that leaves, written or not */
  /* Host memory between the device and a disk. 0: what the device moves to holds everything. Else
   * the speeds above are those of the link to host memory, and these are those of the disk below
   * it. */
  uint64_t host_bytes;
  double disk_read_bytes_per_s;
  double disk_write_bytes_per_s;
} tencache_machine;

/* Large enough for all that tencache_plan() writes. */
#define TENCACHE_PLAN_JSON_BYTES 1024

/* Plans the period for the machine and writes the prediction for one period into `buffer` as JSON:
 *   step_ns                               compute_ns + stall_ns + work_ns
 *   step_slower_ns, step_faster_ns        the same plan, with links and disk 20 % slower and faster
 *   compute_ns
 *   bound_step_ns                         no schedule can beat it
 *   stall_ns
 *   work_ns                               processor time that moving takes from the program
 *   bytes_read, bytes_written
 *   bytes_dropped                         left without a write
 *   bytes_late                            those read that ops waited for or found cold
 *   disk_bytes_read, disk_bytes_written   below host memory, if there is a disk
 *   over_budget_bytes
 *   peak_bytes                            of the period itself
 *   largest_op_bytes                      of the period itself: the smallest budget that is never
 *                                         exceeded
 * Returns 0, or an error code with *error filled. Needs no start. Takes milliseconds for hundreds
 * of ops, seconds for thousands of ops and tensors. Threads: any. */
TENCACHE_API int tencache_plan(const tencache_period* period, const tencache_machine* machine,
                               char* buffer, size_t bytes, tencache_error* error);

/* Plans as tencache_plan() does and writes what happens when into `buffer`, as JSON:
 *   step_ns, work_ns
 *   begin_ns             for each op
 *   stall_ns             for each op: the wait before it
 *   used_bytes           for each op: the most on the device from the end of the op before to the
 *                        end of this one
 *   existing_bytes       for each op: wherever they are
 *   evictions, fetches   in the order in which they were requested, each as tensors (their
 *                        numbers), begin_ns and end_ns
 * Times count from the beginning of the period; work_ns is part of step_ns and of no other
 * time. An eviction that ends as it begins needed no write. A move that was under way when the
 * period began has a begin_ns below 0; one that does not end in this period ends in the next.
 * Returns the size needed, as tencache_stats_json() does, or 0 with *error filled. */
TENCACHE_API size_t tencache_plan_timeline(const tencache_period* period,
                                           const tencache_machine* machine, char* buffer,
                                           size_t bytes, tencache_error* error);

/* Takes the period of an earlier run of the program (option learn_from), to be planned at start and
 * followed from the first step. `op_names` has a name for each op; an op's accesses come in the
 * order in which the gate saw them. Everything is copied. Call before tencache_start(); later it is
 * an error. Returns 0, or an error code with *error filled. */
TENCACHE_API int tencache_learn_from(const tencache_period* period, const char* const* op_names,
                                     tencache_error* error);

/* ---- Tests ---------------------------------------------------------------------------------- */

/* Evicts, on this thread, every extent that may be evicted; returns how many went cold. */
TENCACHE_API uint64_t tencache_evict_all(void);
/* 1 if the extent that contains the address is cold, 0 if resident, -1 if there is none. */
TENCACHE_API int tencache_is_cold(const void* address);

#ifdef __cplusplus
}
#endif

#endif /* TENCACHE_H_ */
