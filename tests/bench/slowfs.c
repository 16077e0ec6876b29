/*
 * slowfs: a backing directory that is as slow as storage across a network.
 *
 * A multi-threaded FUSE mirror of DIR at MOUNT that adds a round trip to each
 * request and caps the throughput of each open file and of the whole mount.
 * The kernel treats it as it treats NFS: attributes are believed for a second,
 * pages stay while mtime and size do, reads go 1 MiB ahead (as root). Drop the
 * kernel's caches for a cold start: echo 3 > /proc/sys/vm/drop_caches
 *
 *   cc -O2 -Wall -o slowfs slowfs.c $(pkg-config --cflags --libs fuse3) -lpthread
 *   ./slowfs DIR MOUNT --latency-ms=10 --stream-mbps=100 --total-mbps=1000
 *   fusermount3 -u MOUNT
 *
 * --latency-ms   round trip added to each request, milliseconds (10)
 * --stream-mbps  most that one open file moves, MB/s, 0 for no cap (100)
 * --total-mbps   most that the mount moves, MB/s, 0 for no cap (1000)
 * --fail         path of a flag file: while it exists each request answers EIO
 * --direct       nothing is cached by the kernel: each read and lookup pays
 *
 * The attribute user.slowfs.counters of MOUNT answers at once what was asked so far: a line for each
 * kind of request and one for each of read_bytes and written_bytes. It is not counted itself.
 */
#define FUSE_USE_VERSION 312
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static struct options {
    char *dir, *fail, *mount;
    int direct;
    double latency_ms, stream_mbps, total_mbps;
} opt = {.latency_ms = 10, .stream_mbps = 100, .total_mbps = 1000};
static int root = -1;

/* Kinds of requests; each is counted apart. */
#define KINDS(X) \
    X(getattr) X(readlink) X(mkdir) X(unlink) X(rmdir) X(symlink) X(link) X(mknod) X(rename) X(chmod) \
    X(chown) X(utimens) X(truncate) X(open) X(create) X(read) X(write) X(fsync) X(opendir) X(readdir) \
    X(statfs) X(setxattr) X(getxattr) X(listxattr) X(removexattr)
#define ENUM(kind) K_##kind,
#define NAME(kind) #kind,
enum kind { KINDS(ENUM) N_KINDS };
static const char *const kind_names[] = { KINDS(NAME) };
static atomic_ullong requests[N_KINDS], bytes_read, bytes_written;

/* A pipe of fixed width: each transfer occupies it after the ones before. */
struct pipe_ { pthread_mutex_t lock; double free_at; };
static struct pipe_ total = {PTHREAD_MUTEX_INITIALIZER, 0};
struct handle { int fd; struct pipe_ pipe; };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double occupy(struct pipe_ *p, double start, size_t size, double mbps) {
    if (mbps <= 0) return start;
    pthread_mutex_lock(&p->lock);
    double begin = p->free_at > start ? p->free_at : start;
    double end = p->free_at = begin + size / (mbps * 1e6);
    pthread_mutex_unlock(&p->lock);
    return end;
}

static void sleep_until(double when) {
    struct timespec t = {(time_t)when, (long)((when - (time_t)when) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
}

static int arrive(enum kind kind) {
    requests[kind]++;
    sleep_until(now() + opt.latency_ms / 1e3);
    return opt.fail && access(opt.fail, F_OK) == 0 ? -EIO : 0;
}

static void move(struct handle *h, size_t size) {
    double t = now(), a = occupy(&h->pipe, t, size, opt.stream_mbps);
    double b = occupy(&total, t, size, opt.total_mbps);
    sleep_until(a > b ? a : b);
}

static const char *rel(const char *path) { return path[1] ? path + 1 : "."; }
static int res(int r) { return r < 0 ? -errno : 0; }
#define ARRIVE(kind) do { int e_ = arrive(K_##kind); if (e_) return e_; } while (0)
#define H(fi) ((struct handle *)(uintptr_t)(fi)->fh)

static void proc_path(char *out, const char *path) {
    snprintf(out, PATH_MAX, "%s/%s", opt.dir, rel(path));
}

static int s_getattr(const char *p, struct stat *st, struct fuse_file_info *fi) {
    (void)fi;
    ARRIVE(getattr);
    return res(fstatat(root, rel(p), st, AT_SYMLINK_NOFOLLOW));
}
static int s_readlink(const char *p, char *buf, size_t n) {
    ARRIVE(readlink);
    ssize_t r = readlinkat(root, rel(p), buf, n - 1);
    if (r < 0) return -errno;
    buf[r] = 0;
    return 0;
}
static int s_mkdir(const char *p, mode_t m) { ARRIVE(mkdir); return res(mkdirat(root, rel(p), m)); }
static int s_unlink(const char *p) { ARRIVE(unlink); return res(unlinkat(root, rel(p), 0)); }
static int s_rmdir(const char *p) { ARRIVE(rmdir); return res(unlinkat(root, rel(p), AT_REMOVEDIR)); }
static int s_symlink(const char *to, const char *p) { ARRIVE(symlink); return res(symlinkat(to, root, rel(p))); }
static int s_link(const char *a, const char *b) { ARRIVE(link); return res(linkat(root, rel(a), root, rel(b), 0)); }
static int s_mknod(const char *p, mode_t m, dev_t d) { ARRIVE(mknod); return res(mknodat(root, rel(p), m, d)); }
static int s_rename(const char *a, const char *b, unsigned f) {
    ARRIVE(rename);
    return res(renameat2(root, rel(a), root, rel(b), f));
}
static int s_chmod(const char *p, mode_t m, struct fuse_file_info *fi) {
    (void)fi; ARRIVE(chmod); return res(fchmodat(root, rel(p), m, 0));
}
static int s_chown(const char *p, uid_t u, gid_t g, struct fuse_file_info *fi) {
    (void)fi; ARRIVE(chown); return res(fchownat(root, rel(p), u, g, AT_SYMLINK_NOFOLLOW));
}
static int s_utimens(const char *p, const struct timespec t[2], struct fuse_file_info *fi) {
    (void)fi; ARRIVE(utimens); return res(utimensat(root, rel(p), t, AT_SYMLINK_NOFOLLOW));
}
static int s_truncate(const char *p, off_t n, struct fuse_file_info *fi) {
    ARRIVE(truncate);
    if (fi) return res(ftruncate(H(fi)->fd, n));
    char full[PATH_MAX];
    proc_path(full, p);
    return res(truncate(full, n));
}
static int opened(int fd, struct fuse_file_info *fi) {
    if (fd < 0) return -errno;
    struct handle *h = calloc(1, sizeof *h);
    h->fd = fd;
    pthread_mutex_init(&h->pipe.lock, NULL);
    fi->fh = (uintptr_t)h;
    fi->direct_io = opt.direct;
    return 0;
}
static int s_open(const char *p, struct fuse_file_info *fi) {
    ARRIVE(open);
    return opened(openat(root, rel(p), fi->flags & ~O_NOFOLLOW), fi);
}
static int s_create(const char *p, mode_t m, struct fuse_file_info *fi) {
    ARRIVE(create);
    return opened(openat(root, rel(p), fi->flags | O_CREAT, m), fi);
}
static int s_read(const char *p, char *buf, size_t n, off_t off, struct fuse_file_info *fi) {
    (void)p;
    ARRIVE(read);
    ssize_t r = pread(H(fi)->fd, buf, n, off);
    if (r < 0) return -errno;
    bytes_read += r;
    move(H(fi), r);
    return r;
}
static int s_write(const char *p, const char *buf, size_t n, off_t off, struct fuse_file_info *fi) {
    (void)p;
    ARRIVE(write);
    move(H(fi), n);
    ssize_t r = pwrite(H(fi)->fd, buf, n, off);
    if (r < 0) return -errno;
    bytes_written += r;
    return r;
}
static int s_fsync(const char *p, int data, struct fuse_file_info *fi) {
    (void)p; (void)data; ARRIVE(fsync); return res(fsync(H(fi)->fd));
}
static int s_flush(const char *p, struct fuse_file_info *fi) { (void)p; (void)fi; return 0; }
static int s_release(const char *p, struct fuse_file_info *fi) {
    (void)p;
    close(H(fi)->fd);
    free(H(fi));
    return 0;
}
/* Names come with attributes, a round trip for each reply of some 40 KiB, as NFS lists. */
static int s_opendir(const char *p, struct fuse_file_info *fi) {
    ARRIVE(opendir);
    int fd = openat(root, rel(p), O_RDONLY | O_DIRECTORY);
    if (fd < 0) return -errno;
    fi->fh = (uintptr_t)fdopendir(fd);
    return 0;
}
static int s_readdir(const char *p, void *buf, fuse_fill_dir_t fill, off_t off,
                     struct fuse_file_info *fi, enum fuse_readdir_flags flags) {
    (void)p; (void)flags;
    DIR *d = (DIR *)(uintptr_t)fi->fh;
    ARRIVE(readdir);
    seekdir(d, off);
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        int plus = !fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW);
        if (fill(buf, e->d_name, plus ? &st : NULL, telldir(d), plus ? FUSE_FILL_DIR_PLUS : 0)) break;
    }
    return 0;
}
static int s_releasedir(const char *p, struct fuse_file_info *fi) {
    (void)p;
    closedir((DIR *)(uintptr_t)fi->fh);
    return 0;
}
static int s_statfs(const char *p, struct statvfs *st) { (void)p; ARRIVE(statfs); return res(fstatvfs(root, st)); }
static int s_setxattr(const char *p, const char *k, const char *v, size_t n, int f) {
    char full[PATH_MAX]; proc_path(full, p); ARRIVE(setxattr); return res(lsetxattr(full, k, v, n, f));
}
static int counters(char *v, size_t n) {
    char text[2048];
    int size = 0;
    for (int i = 0; i < N_KINDS; i++)
        size += snprintf(text + size, sizeof text - size, "%s %llu\n", kind_names[i],
                         (unsigned long long)requests[i]);
    size += snprintf(text + size, sizeof text - size, "read_bytes %llu\nwritten_bytes %llu\n",
                     (unsigned long long)bytes_read, (unsigned long long)bytes_written);
    if (n && (size_t)size > n) return -ERANGE;
    if (n) memcpy(v, text, size);
    return size;
}
static int s_getxattr(const char *p, const char *k, char *v, size_t n) {
    if (!p[1] && !strcmp(k, "user.slowfs.counters")) return counters(v, n);
    char full[PATH_MAX]; proc_path(full, p); ARRIVE(getxattr);
    ssize_t r = lgetxattr(full, k, v, n);
    return r < 0 ? -errno : (int)r;
}
static int s_listxattr(const char *p, char *v, size_t n) {
    char full[PATH_MAX]; proc_path(full, p); ARRIVE(listxattr);
    ssize_t r = llistxattr(full, v, n);
    return r < 0 ? -errno : (int)r;
}
static int s_removexattr(const char *p, const char *k) {
    char full[PATH_MAX]; proc_path(full, p); ARRIVE(removexattr); return res(lremovexattr(full, k));
}
/* What a mount option cannot say: how far the kernel reads ahead. */
static void *tune(void *unused) {
    (void)unused;
    struct stat st;
    char path[64];
    if (stat(opt.mount, &st)) return NULL;
    snprintf(path, sizeof path, "/sys/class/bdi/%u:%u/read_ahead_kb", major(st.st_dev), minor(st.st_dev));
    FILE *f = fopen(path, "w");
    if (f) { fputs("1024", f); fclose(f); }
    return NULL;
}
static void *s_init(struct fuse_conn_info *c, struct fuse_config *cfg) {
    c->max_background = 64;
    c->want &= ~FUSE_CAP_READDIRPLUS_AUTO; /* always attributes */
    cfg->use_ino = 1;
    cfg->entry_timeout = cfg->attr_timeout = opt.direct ? 0 : 1;
    cfg->negative_timeout = 0;
    cfg->auto_cache = !opt.direct;
    pthread_t t;
    if (!opt.direct && opt.mount && !pthread_create(&t, NULL, tune, NULL)) pthread_detach(t);
    return NULL;
}
static const struct fuse_operations ops = {
    .init = s_init, .getattr = s_getattr, .readlink = s_readlink, .mkdir = s_mkdir,
    .unlink = s_unlink, .rmdir = s_rmdir, .symlink = s_symlink, .rename = s_rename,
    .link = s_link, .mknod = s_mknod, .chmod = s_chmod, .chown = s_chown,
    .utimens = s_utimens, .truncate = s_truncate, .open = s_open, .create = s_create,
    .read = s_read, .write = s_write, .fsync = s_fsync, .flush = s_flush,
    .release = s_release, .opendir = s_opendir, .readdir = s_readdir, .releasedir = s_releasedir, .statfs = s_statfs,
    .setxattr = s_setxattr, .getxattr = s_getxattr, .listxattr = s_listxattr,
    .removexattr = s_removexattr,
};
static const struct fuse_opt spec[] = {
    {"--latency-ms=%lf", offsetof(struct options, latency_ms), 0},
    {"--stream-mbps=%lf", offsetof(struct options, stream_mbps), 0},
    {"--total-mbps=%lf", offsetof(struct options, total_mbps), 0},
    {"--fail=%s", offsetof(struct options, fail), 0},
    {"--direct", offsetof(struct options, direct), 1},
    FUSE_OPT_END,
};
static int arg(void *data, const char *a, int key, struct fuse_args *out) {
    (void)data; (void)out;
    if (key == FUSE_OPT_KEY_NONOPT && !opt.dir) {
        opt.dir = realpath(a, NULL);
        return opt.dir ? 0 : -1;
    }
    if (key == FUSE_OPT_KEY_NONOPT && !opt.mount) opt.mount = realpath(a, NULL);
    return 1;
}
int main(int argc, char **argv) {
    struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
    if (fuse_opt_parse(&args, &opt, spec, arg) || !opt.dir) {
        fprintf(stderr, "usage: slowfs DIR MOUNT [--latency-ms=N] [--stream-mbps=N] [--total-mbps=N] [--fail=FLAG]\n");
        return 2;
    }
    root = open(opt.dir, O_RDONLY | O_DIRECTORY);
    if (root < 0) { perror(opt.dir); return 1; }
    umask(0);
    fuse_opt_add_arg(&args, "-omax_threads=256,max_idle_threads=256,fsname=slowfs");
    if (geteuid() == 0) fuse_opt_add_arg(&args, "-oallow_other"); /* others need a line in fuse.conf */
    return fuse_main(args.argc, args.argv, &ops, NULL);
}
