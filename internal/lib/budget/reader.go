package budget

import "io"

// Reader returns a reader of r that takes cost units for every byte it reads. A read that is not paid fails, with the
// error of Take.
func (a *Account) Reader(r io.Reader, cost int64) io.Reader {
	return &reader{r: r, account: a, cost: cost}
}

type reader struct {
	r       io.Reader
	account *Account
	cost    int64
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if refused := r.account.Take(r.cost * int64(n)); refused != nil {
		return 0, refused
	}
	return n, err
}
