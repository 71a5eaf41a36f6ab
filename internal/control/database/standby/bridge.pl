# Carries one connection from a Unix socket of this guest to standard input and output. Perl is part of every Debian.
use strict;
use warnings;
use Socket;

my ($dir, $name) = @ARGV;
mkdir $dir, 0700;
unlink "$dir/$name";
$SIG{PIPE} = 'IGNORE';
socket(my $listener, PF_UNIX, SOCK_STREAM, 0) or die "socket: $!";
bind($listener, pack_sockaddr_un("$dir/$name")) or die "bind: $!";
listen($listener, 1) or die "listen: $!";

my $ready = wait_for($listener);
exit 0 if vec($ready, fileno(STDIN), 1); # nothing comes before a connection but the end
accept(my $client, $listener) or die "accept: $!";
close $listener;
unlink "$dir/$name";
while (1) {
	my $ready = wait_for($client);
	copy(*STDIN, $client) or last if vec($ready, fileno(STDIN), 1);
	copy($client, *STDOUT) or last if vec($ready, fileno($client), 1);
}

sub wait_for {
	my ($other) = @_;
	my $set = '';
	vec($set, fileno(STDIN), 1) = 1;
	vec($set, fileno($other), 1) = 1;
	select(my $ready = $set, undef, undef, undef);
	return $ready;
}

sub copy {
	my ($from, $to) = @_;
	my $n = sysread($from, my $data, 131072) or return 0;
	for (my $at = 0; $at < $n;) {
		$at += syswrite($to, $data, $n - $at, $at) || return 0;
	}
	return 1;
}
