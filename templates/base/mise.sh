# Links what mise has installed for all users into PATH, and tells mise of it. Arguments: tool=version.
# Python is the distribution's own: mise knows it by a link.
set -eu
installs=/usr/local/share/mise/installs
ln -s ../lib/mise/bin/mise /usr/local/bin/mise
version=$(python3 -c 'import platform; print(platform.python_version())')
mkdir -p $installs/python/$version/bin /etc/mise
ln -s /usr/bin/python3 $installs/python/$version/bin/python3
ln -s /usr/bin/python3 $installs/python/$version/bin/python
ln -s /usr/bin/python3 /usr/local/bin/python
printf '[tools]\npython = "%s"\n' "$version" > /etc/mise/config.toml
for pair; do
	tool=${pair%%=*}
	version=${pair#*=}
	bin=$installs/$tool/$version/bin
	case $tool in
	node)
		ln -s ../lib/node_modules/npm/bin/npm-cli.js $bin/npm
		ln -s ../lib/node_modules/npm/bin/npx-cli.js $bin/npx
		chmod 755 $installs/node/$version/lib/node_modules/npm/bin/*.js
		# What is installed for all goes where every user's PATH leads, whichever Node is in use.
		mkdir -p $installs/node/$version/etc
		printf 'prefix=/usr/local\nfund=false\nupdate-notifier=false\n' > $installs/node/$version/etc/npmrc
		;;
	bun)
		ln -s bun $bin/bunx
		;;
	go)
		# Its tests are a quarter of it and nobody's need in a sandbox.
		rm -rf $installs/go/$version/test $installs/go/$version/doc $installs/go/$version/api
		;;
	esac
	for program in $bin/*; do
		ln -s $program /usr/local/bin/
	done
	printf '%s = "%s"\n' $tool $version >> /etc/mise/config.toml
done
# A sandbox is nobody's system: pip may install where Python looks.
printf '[global]\nbreak-system-packages = true\nroot-user-action = ignore\ndisable-pip-version-check = true\n' > /etc/pip.conf
