package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"flag"
	"fmt"
	"hash"
	"net"
	"os"
	"sort"
	"strings"
	"sync"
)

var (
	user      = flag.String("user", "", "sign requests as this user")
	password  = flag.String("password", "", "of the user")
	authority = flag.String("authority", "", "PEM file of the authority that signed the broker's certificate: connect by TLS")
)

const signatureMark = "SSSSSSSSSSSSSSSSSSSSSSSSSSSS" // as long as base64 of a SHA-1

// signing signs a frame again whenever its fields have changed: base64(HMAC-SHA1(values in the order of their names, body)).
type signing struct {
	mac    hash.Hash
	values [][2]int // from and to in the frame, in the order of their names; the body last
	at     int
}

// identified adds the fields of who signs to those of a request.
func identified(ext [][2]string) [][2]string {
	if *user == "" {
		return ext
	}
	return append([][2]string{{"AccessKey", *user}}, append(ext, [2]string{"Signature", signatureMark})...)
}

// newSigning finds in an encoded frame what is signed; nil if nothing is.
func newSigning(data []byte, ext [][2]string, bodyLength int) *signing {
	if *user == "" {
		return nil
	}
	found := map[string][2]int{}
	from := 0
	for _, kv := range ext {
		mark := fmt.Sprintf(`"%s":"`, kv[0])
		begin := from + bytes.Index(data[from:], []byte(mark)) + len(mark)
		from = begin + bytes.IndexByte(data[begin:], '"')
		found[kv[0]] = [2]int{begin, from}
	}
	s := &signing{mac: hmac.New(sha1.New, []byte(*password)), at: found["Signature"][0]}
	delete(found, "Signature")
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		s.values = append(s.values, found[name])
	}
	s.values = append(s.values, [2]int{len(data) - bodyLength, len(data)})
	return s
}

var unescape = strings.NewReplacer(`\u0001`, "\x01", `\u0002`, "\x02")

// ready is the frame as it is sent now: signed, if requests are.
func (f *frame) ready() []byte {
	s := f.signing
	if s == nil {
		return f.data
	}
	s.mac.Reset()
	for i, span := range s.values {
		value := f.data[span[0]:span[1]]
		if i < len(s.values)-1 && bytes.IndexByte(value, '\\') >= 0 {
			value = []byte(unescape.Replace(string(value)))
		}
		s.mac.Write(value)
	}
	var sum [sha1.Size]byte
	base64.StdEncoding.Encode(f.data[s.at:], s.mac.Sum(sum[:0]))
	return f.data
}

var trust = sync.OnceValue(func() *tls.Config {
	pem, err := os.ReadFile(*authority)
	if err != nil {
		fail(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		fail(fmt.Errorf("%s has no certificate", *authority))
	}
	return &tls.Config{RootCAs: pool}
})

// connected is a connection by TLS, if there is an authority, or a plain one.
func connected(address string) (net.Conn, error) {
	if *authority == "" {
		return net.Dial("tcp", address)
	}
	return tls.Dial("tcp", address, trust())
}
