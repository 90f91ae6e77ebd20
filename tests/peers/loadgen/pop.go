package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	acksOutMax      = 256 // of one connection: more, and the next pop waits
	popPause        = time.Millisecond
	popPollMs       = 15_000 // until a waiting pop is answered with nothing
	pollingFull     = 209
	pollingTimeout  = 210
	popCode         = 200050
	ackCode         = 200051
	batchAckCode    = 200151
	settleSeconds   = 30  // until what was sent has come
	waitersPerGroup = 500 // below the least `popPollingSize`
)

// popper is one connection that pops and acknowledges. An opaque below `ackBase` names a slot of pops.
type popper struct {
	*conn
	broker   string
	groups   []string // by slot
	requests []frame  // by slot
	header   []byte
	mac      hash.Hash // signs acks; nil if nothing is signed
	acks     int64     // asked for so far
	out      int       // of them not answered
}

const ackBase = opaqueBase + 1_000_000

// popFrame is a POP_MESSAGE of any queue, as a client of 5.x makes it.
func popFrame(group string, pollMs int) frame {
	return encode(popCode, [][2]string{{"bornTime", bornMark}, {"consumerGroup", group}, {"exp", "*"}, {"expType", "TAG"},
		{"initMode", "0"}, {"invisibleTime", fmt.Sprint(*invisible)}, {"maxMsgNums", fmt.Sprint(*each)}, {"order", "false"},
		{"pollTime", fmt.Sprint(pollMs)}, {"queueId", "-1"}, {"topic", *topic}}, nil)
}

func newPopper(broker string, groups []string, pollMs int) *popper {
	c, err := dial(*addr)
	if err != nil {
		fail(err)
	}
	p := &popper{conn: c, broker: broker, groups: groups}
	if *user != "" {
		p.mac = hmac.New(sha1.New, []byte(*password))
	}
	for _, group := range groups {
		p.requests = append(p.requests, popFrame(group, pollMs))
	}
	return p
}

// pop asks for messages.
func (p *popper) pop(slot int) {
	f := &p.requests[slot]
	digits(f.data, f.opaque, 10, opaqueBase+int64(slot))
	digits(f.data, f.born, 13, time.Now().UnixMilli())
	if _, err := p.conn.out.Write(f.ready()); err != nil {
		fail(err)
	}
}

// popped is what an answer gives out of one queue.
type popped struct {
	flag, queue string
	start       int64
	offsets     []int64
}

// text is the value of a field of a header whose values need no escapes.
func text(header []byte, name string) string {
	at := bytes.Index(header, []byte(`"`+name+`"`))
	if at < 0 {
		return ""
	}
	rest := header[at+len(name)+2:]
	from := bytes.IndexByte(rest, '"')
	if from < 0 {
		return ""
	}
	rest = rest[from+1:]
	return string(rest[:max(0, bytes.IndexByte(rest, '"'))])
}

// given reads startOffsetInfo and msgOffsetInfo; the messages of the body must be those that they name.
func given(a answer) ([]popped, error) {
	var all []popped
	starts := strings.Split(text(a.header, "startOffsetInfo"), ";")
	named := 0
	for _, item := range strings.Split(text(a.header, "msgOffsetInfo"), ";") {
		parts := strings.Split(item, " ")
		if len(parts) != 3 {
			return nil, fmt.Errorf("msgOffsetInfo of %s", a.header)
		}
		one := popped{flag: parts[0], queue: parts[1], start: -1}
		for _, start := range starts {
			if value, ok := strings.CutPrefix(start, one.flag+" "+one.queue+" "); ok {
				one.start, _ = strconv.ParseInt(value, 10, 64)
			}
		}
		for _, number := range strings.Split(parts[2], ",") {
			offset, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				return nil, err
			}
			one.offsets = append(one.offsets, offset)
		}
		if one.start < 0 || one.start > one.offsets[0] {
			return nil, fmt.Errorf("startOffsetInfo of %s", a.header)
		}
		named += len(one.offsets)
		all = append(all, one)
	}
	found := 0
	err := walk(a.body, func(int64, []byte, uint32) { found++ })
	if err == nil && found != named {
		err = fmt.Errorf("%d messages in an answer that names %d: %s", found, named, a.header)
	}
	return all, err
}

// ack acknowledges what an answer gave to a group: each message alone, or all with one request.
func (p *popper) ack(group string, a answer, all []popped) {
	popTime, revive := text(a.header, "popTime"), text(a.header, "reviveQid")
	if *acks == "none" {
		return
	}
	if *acks == "batch" {
		var body []byte
		for i, one := range all {
			if i > 0 {
				body = append(body, ',')
			}
			bits := make([]byte, (one.offsets[len(one.offsets)-1]-one.start)/8+1)
			for _, offset := range one.offsets {
				bits[(offset-one.start)/8] |= 1 << ((offset - one.start) % 8)
			}
			body = fmt.Appendf(body, `{"c":"%s","t":"%s","r":"%s","so":%d,"q":%s,"rq":%s,"pt":%s,"it":%d,"b":"%s"}`,
				group, *topic, one.flag, one.start, one.queue, revive, popTime, *invisible, base64.StdEncoding.EncodeToString(bits))
		}
		p.request(batchAckCode, nil, []byte(fmt.Sprintf(`{"brokerName":"%s","acks":[%s]}`, p.broker, body)))
		return
	}
	for _, one := range all {
		for _, offset := range one.offsets {
			handle := fmt.Sprintf("%d %s %d %s %s %s %s %d",
				one.start, popTime, *invisible, revive, one.flag, p.broker, one.queue, offset)
			fields := [][2]string{{"consumerGroup", group}, {"extraInfo", handle}, {"offset", strconv.FormatInt(offset, 10)},
				{"queueId", one.queue}, {"topic", *topic}}
			p.request(ackCode, fields, nil)
		}
	}
}

// request writes an ack, whose fields are sorted by name and need no escapes.
func (p *popper) request(code int, ext [][2]string, body []byte) {
	p.acks++
	p.out++
	h := fmt.Appendf(p.header[:0], `{"code":%d,"extFields":{`, code)
	if p.mac != nil {
		p.mac.Reset()
		_, _ = io.WriteString(p.mac, *user)
		for _, kv := range ext {
			_, _ = io.WriteString(p.mac, kv[1])
		}
		_, _ = p.mac.Write(body)
		var sum [sha1.Size]byte
		ext = append(ext, [2]string{"AccessKey", *user},
			[2]string{"Signature", base64.StdEncoding.EncodeToString(p.mac.Sum(sum[:0]))})
	}
	for i, kv := range ext {
		if i > 0 {
			h = append(h, ',')
		}
		h = append(h, '"')
		h = append(h, kv[0]...)
		h = append(h, `":"`...)
		h = append(h, kv[1]...)
		h = append(h, '"')
	}
	h = fmt.Appendf(h, `},"flag":0,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":479}`,
		ackBase+p.acks%500_000_000)
	p.header = h
	var prefix [8]byte
	binary.BigEndian.PutUint32(prefix[:], uint32(4+len(h)+len(body)))
	binary.BigEndian.PutUint32(prefix[4:], uint32(len(h)))
	_, _ = p.conn.out.Write(prefix[:])
	_, _ = p.conn.out.Write(h)
	if _, err := p.conn.out.Write(body); err != nil {
		fail(err)
	}
}

// next is the next answer; what was written is sent when nothing is there to be read.
func (p *popper) next() answer {
	if p.in.Buffered() == 0 {
		_ = p.conn.out.Flush()
	}
	_ = p.SetReadDeadline(time.Now().Add(answerSeconds * time.Second))
	a, err := p.read()
	if err != nil {
		fail(err)
	}
	return a
}

// brokerName asks for it: handles name it.
func brokerName() string {
	c, err := dial(*addr)
	if err != nil {
		fail(err)
	}
	defer c.Close()
	f := encode(26, nil, nil)
	_, _ = c.Write(f.ready())
	a, err := c.read()
	if err != nil || a.code != 0 {
		fail(fmt.Errorf("configuration of the broker: %s %v", a.header, err))
	}
	for _, line := range strings.Split(string(a.body), "\n") {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "brokerName="); ok {
			return name
		}
	}
	fail(fmt.Errorf("the broker says no brokerName"))
	return ""
}

// pops lets consumers of one new group have all messages of the topic, or -count: each once, and acknowledged.
func pops() result {
	broker, group := brokerName(), fmt.Sprintf("%s-%d", *group, time.Now().UnixNano())
	c, err := dial(*addr)
	if err != nil {
		fail(err)
	}
	total := int64(0)
	for _, end := range ends(c) {
		total += end
	}
	c.Close()
	if *count > 0 {
		total = min(total, *count)
	}
	given_ := make([]offsets, *queues)
	var messages, answers, empty atomic.Int64
	var lock sync.Mutex
	var all []int32
	var wait sync.WaitGroup
	begun := time.Now()
	for n := 0; n < *conns; n++ {
		p := newPopper(broker, []string{group}, 0)
		wait.Add(1)
		go func() {
			defer wait.Done()
			defer p.Close()
			var mine []int32
			asked, at := true, time.Now()
			p.pop(0)
			for asked || p.out > 0 {
				a := p.next()
				switch {
				case a.opaque >= ackBase:
					p.out--
					if a.code != 0 {
						fail(fmt.Errorf("ack: %s", a.header))
					}
				case a.code == 0:
					mine = append(mine, int32(time.Since(at)/time.Microsecond))
					asked = false
					answers.Add(1)
					found, err := given(a)
					if err != nil {
						fail(err)
					}
					for _, one := range found {
						q, _ := strconv.Atoi(one.queue)
						for _, offset := range one.offsets {
							given_[q].add(offset, 1)
						}
						messages.Add(int64(len(one.offsets)))
					}
					p.ack(group, a, found)
				case a.code == pollingTimeout || a.code == notFoundCode || a.code == pollingFull:
					asked = false
					empty.Add(1)
					if messages.Load() < total {
						_ = p.conn.out.Flush()
						time.Sleep(popPause) // its queues were locked
					}
				default:
					fail(fmt.Errorf("pop: %s", a.header))
				}
				if !asked && p.out < acksOutMax && messages.Load() < total {
					asked, at = true, time.Now()
					p.pop(0)
				}
			}
			lock.Lock()
			all = append(all, mine...)
			lock.Unlock()
		}()
	}
	wait.Wait()
	elapsed := time.Since(begun).Seconds()
	twice := int64(0)
	for q := range given_ {
		twice += given_[q].twice
	}
	r := latencies(all)
	r["messages"], r["seconds"], r["perSecond"] = messages.Load(), elapsed, round(float64(messages.Load())/elapsed)
	r["group"] = group
	r["pops"], r["empty"], r["twice"] = answers.Load(), empty.Load(), twice
	r["ok"] = twice == 0 && messages.Load() >= total && total > 0
	return r
}

// waitingPops lets -count pops wait, so many in each group, while -rate messages a second come: from before a send
// until a pop of each group is answered. Each is acknowledged and its consumer waits again.
func waitingPops() result {
	broker := brokerName()
	groups := int(max(1, (*count+waitersPerGroup-1)/waitersPerGroup))
	waitersEach := int(*count) / groups
	stamp := time.Now().UnixNano()
	total := int64(*seconds*float64(*rate)) * int64(groups)
	var got, waits, again atomic.Int64
	var lock sync.Mutex
	var all []int32
	complete := make(chan struct{})
	for n := 0; n < *conns; n++ {
		var mine []string
		for g := 0; g < groups; g++ {
			for i := n; i < waitersEach; i += *conns {
				mine = append(mine, fmt.Sprintf("%s-%d-%d", *group, g, stamp))
			}
		}
		p := newPopper(broker, mine, popPollMs)
		waits.Add(int64(len(mine)))
		go func() {
			for slot := range mine {
				p.pop(slot)
			}
			for {
				a := p.next()
				now := time.Now().UnixNano()
				if a.opaque >= ackBase {
					if a.code != 0 {
						fail(fmt.Errorf("ack: %s", a.header))
					}
					continue
				}
				slot := int(a.opaque - opaqueBase)
				if a.code == 0 {
					found, err := given(a)
					if err != nil {
						fail(err)
					}
					_ = walk(a.body, func(_ int64, body []byte, _ uint32) {
						lock.Lock()
						all = append(all, int32((now-int64(binary.BigEndian.Uint64(body)))/1000))
						lock.Unlock()
						if got.Add(1) == total {
							close(complete)
						}
					})
					p.ack(mine[slot], a, found)
				} else if a.code == pollingTimeout {
					again.Add(1)
				} else {
					fail(fmt.Errorf("waiting pop: %s", a.header))
				}
				p.pop(slot)
			}
		}()
	}
	time.Sleep(time.Duration(*warm * float64(time.Second))) // all wait
	c, err := dial(*addr)
	if err != nil {
		fail(err)
	}
	go func() {
		for {
			if a, err := c.read(); err != nil || a.code != 0 {
				fail(fmt.Errorf("send: %s %v", a.header, err))
			}
		}
	}()
	begun := time.Now()
	for n := 0; n < int(*seconds*float64(*rate)); n++ {
		time.Sleep(time.Until(begun.Add(time.Duration(n) * time.Second / time.Duration(*rate))))
		f := sendFrame(*topic, n%*queues, *size, 1)
		now := time.Now()
		digits(f.data, f.opaque, 10, opaqueBase+int64(n))
		digits(f.data, f.born, 13, now.UnixMilli())
		hex(f.data, f.key, uint32(n))
		binary.BigEndian.PutUint64(f.data[len(f.data)-*size:], uint64(now.UnixNano()))
		if _, err := c.Write(f.ready()); err != nil {
			fail(err)
		}
	}
	ok := true
	select {
	case <-complete:
	case <-time.After(settleSeconds * time.Second):
		ok = false
	}
	lock.Lock()
	r := latencies(all)
	lock.Unlock()
	r["messages"], r["wanted"], r["rate"], r["waiting"], r["timeouts"] = got.Load(), total, *rate, waits.Load(), again.Load()
	r["ok"] = ok && got.Load() == total
	return r
}
