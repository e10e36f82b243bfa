/* A stand-in for the container plug-in of GPU sites (pyxis with enroot): the same options, the same view of the host from inside.
 *
 * What is told of those two holds here: a user namespace and a mount namespace for each task; of the host only /proc, /sys, /dev (with
 * /dev/shm) and what --container-mounts names; a /tmp of its own; the job's environment, with the image's PATH in place of the job's and
 * without LANG; a mount whose source is missing ends the task; the working folder is the image's. The "image" is the host's own /usr.
 * --container-unshare=pid is this plug-in's: enroot can be told to (ENROOT_UNSHARE_PID), and Apptainer and podman do it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

const char plugin_name[] = "containers", plugin_type[] = "spank";
const uint32_t plugin_version = SLURM_VERSION;
const unsigned int spank_plugin_version = 1;

int spank_setenv(void *spank, const char *name, const char *value, int overwrite);
int spank_unsetenv(void *spank, const char *name);
void slurm_error(const char *format, ...);

enum { IMAGE, MOUNTS, WORKDIR, UNSHARE, OPTIONS };
static char *asked[OPTIONS];
static const char root[] = "/mnt"; /* is on every system, and seen by nobody else while it is the new root */

static int taken(int which, const char *text, int remote)
{
	free(asked[which]);
	asked[which] = strdup(text); /* of several the last one counts, as Slurm hands on one */
	return 0;
}

struct { char *name, *argument, *usage; int has_argument, value; int (*taken)(int, const char *, int); } spank_options[] = {
	{"container-image", "IMAGE", "the image", 1, IMAGE, taken},
	{"container-mounts", "SRC:DST[:FLAGS][,...]", "what of the host is visible", 1, MOUNTS, taken},
	{"container-workdir", "PATH", "the working folder inside", 1, WORKDIR, taken},
	{"container-unshare", "NS", "further namespaces", 1, UNSHARE, taken},
	{0}};

int slurm_spank_init(void *spank, int words, char **word) { return 0; }

static int failed(const char *what)
{
	slurm_error("containers: %s: %s", what, strerror(errno));
	return -1;
}

static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	int bad = fd < 0 || write(fd, text, strlen(text)) < 0;
	if (fd >= 0)
		close(fd);
	return bad ? -1 : 0;
}

static void make(const char *path, int is_folder)
{
	char draft[4096];
	snprintf(draft, sizeof draft, "%s", path);
	for (char *end = draft + 1; (end = strchr(end, '/')); *end++ = '/') {
		*end = 0;
		mkdir(draft, 0755);
	}
	if (is_folder)
		mkdir(draft, 0755);
	else
		close(open(draft, O_CREAT | O_WRONLY, 0644));
}

static int show(const char *source, const char *target)
{
	char inside[4096];
	struct stat told;
	if (stat(source, &told)) {
		slurm_error("containers: --container-mounts: source path does not exist: %s", source);
		return -1;
	}
	snprintf(inside, sizeof inside, "%s%s", root, target);
	make(inside, S_ISDIR(told.st_mode));
	return mount(source, inside, 0, MS_BIND | MS_REC, 0) ? failed(source) : 0;
}

static int show_named(char *mounts)
{
	for (char *next = mounts, *one; (one = strsep(&next, ","));) {
		char *source = strsep(&one, ":"), *target = one ? strsep(&one, ":") : source;
		if (show(source, target))
			return -1;
	}
	return 0;
}

/* The parent of what is process 1 inside: hands signals on, and ends as it ends. */
static pid_t child;
static void hand_on(int number) { kill(child, number); }

static int enter_processes(void)
{
	int status;
	if (unshare(CLONE_NEWPID) || (child = fork()) < 0)
		return failed("pid namespace");
	if (child) {
		for (int number = 1; number < 32; number++)
			if (number != SIGCHLD && number != SIGKILL && number != SIGSTOP)
				signal(number, hand_on);
		while (waitpid(child, &status, 0) < 0 && errno == EINTR)
			;
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
	}
	return prctl(PR_SET_PDEATHSIG, SIGKILL);
}

int slurm_spank_task_init(void *spank, int words, char **word)
{
	static const char *const system[] = {"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/sys", "/dev", 0};
	char map[64], path[128];
	int with_pids = asked[UNSHARE] && strstr(asked[UNSHARE], "pid");
	unsigned uid = getuid(), gid = getgid();

	if (!asked[IMAGE])
		return 0;
	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		return failed("namespaces");
	put("/proc/self/setgroups", "deny");
	snprintf(map, sizeof map, "%u %u 1", uid, uid);
	if (put("/proc/self/uid_map", map))
		return failed("uid_map");
	snprintf(map, sizeof map, "%u %u 1", gid, gid);
	if (put("/proc/self/gid_map", map))
		return failed("gid_map");
	if (mount("none", "/", 0, MS_REC | MS_SLAVE, 0) || mount("tmpfs", root, "tmpfs", 0, 0))
		return failed("root");
	if (with_pids && enter_processes())
		return -1;
	for (int i = 0; system[i]; i++)
		if (!access(system[i], F_OK) && show(system[i], system[i]))
			return -1;
	snprintf(path, sizeof path, "%s/proc", root);
	make(path, 1);
	if (with_pids ? mount("proc", path, "proc", 0, 0) : mount("/proc", path, 0, MS_BIND | MS_REC, 0))
		return failed("/proc");
	snprintf(path, sizeof path, "%s/tmp", root);
	make(path, 1);
	if (mount("tmpfs", path, "tmpfs", 0, 0))
		return failed("/tmp");
	if (asked[MOUNTS] && show_named(asked[MOUNTS]))
		return -1;
	if (chdir(root) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir(asked[WORKDIR] ? asked[WORKDIR] : "/"))
		return failed("working folder");
	spank_unsetenv(spank, "LANG");
	spank_unsetenv(spank, "LANGUAGE");
	spank_unsetenv(spank, "LC_ALL");
	spank_setenv(spank, "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
	return 0;
}
