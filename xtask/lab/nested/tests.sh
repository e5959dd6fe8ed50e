# The e2e tests of the vm tier, as root and as an ordinary user: the tests become that user.

# What a failed test says is shown as it fails, not when all are over.
# shellcheck disable=SC2086 # the filter is words
RUSTC_BOOTSTRAP=1 /lab/vm -Zunstable-options --report-time --test-threads=1 --nocapture \
    $LAB_FILTER </dev/null 2>&1
code=$?
if [ $code -ne 0 ]; then
    echo 'the last words of the kernel:'
    dmesg | tail -n 40
fi
exit $code
