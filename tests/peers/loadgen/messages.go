package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	answerSeconds  = 20 // until an answer
	visibleSeconds = 60 // until one more message is in a queue
	pollPause      = 5 * time.Millisecond
	timerPrecision = 1000 // ms: a time on a whole second is exact for every broker
	timerMargin    = 500  // ms between the last put and the time when all are due
	notFoundCode   = 19
	retryCode      = 20 // nothing matched up to the next offset
	numberWidth    = 12 // digits at the head of the body of a timer
	wantedTag      = 3  // of -tags
)

// transactions keeps -window transactions open on each connection: a half message, then its commit when that is answered.
//
// Counted are commits that were answered. At the end the queues must have exactly the committed messages.
func transactions() result {
	var half offsets
	var committed, measured atomic.Int64
	var lock sync.Mutex
	var all []int32
	start := time.Now()
	from := start.Add(time.Duration(*warm * float64(time.Second)))
	until := from.Add(time.Duration(*seconds * float64(time.Second)))
	var group sync.WaitGroup
	for c := 0; c < *conns; c++ {
		connection, err := dial(*addr)
		if err != nil {
			fail(err)
		}
		group.Add(1)
		go func(c int) {
			defer group.Done()
			t := &transactor{conn: connection, number: c, begun: make([]time.Time, *window),
				keys: make([][len(keyMark)]byte, *window), half: make([]bool, *window)}
			for q := 0; q < *queues; q++ {
				t.frames = append(t.frames, halfFrame(*topic, q, *size))
			}
			var mine []int32
			open := 0
			for ; open < *window; open++ {
				t.begin(open)
			}
			for open > 0 {
				if connection.in.Buffered() == 0 {
					_ = connection.out.Flush()
				}
				_ = connection.SetReadDeadline(time.Now().Add(answerSeconds * time.Second))
				a, err := connection.read()
				if err != nil {
					fail(err)
				}
				slot := int(a.opaque - opaqueBase)
				if a.code != 0 {
					fail(fmt.Errorf("answer of code %d: %s", a.code, a.header))
				}
				if t.half[slot] {
					offset, ok := number(a.header, "queueOffset")
					log, known := logOffset(a.header)
					if !ok || !known {
						fail(fmt.Errorf("half message's answer without queueOffset and msgId: %s", a.header))
					}
					half.add(offset, 1)
					t.commit(slot, offset, log)
					continue
				}
				now := time.Now()
				committed.Add(1)
				if now.After(from) && now.Before(until) {
					measured.Add(1)
					mine = append(mine, int32(now.Sub(t.begun[slot])/time.Microsecond))
				}
				if now.Before(until) {
					t.begin(slot)
				} else {
					open--
				}
			}
			lock.Lock()
			all = append(all, mine...)
			lock.Unlock()
		}(c)
	}
	group.Wait()
	visible, _ := awaitVisible(committed.Load(), nil)
	r := latencies(all)
	r["messages"], r["perSecond"] = measured.Load(), round(float64(measured.Load()) / *seconds)
	r["acked"], r["visible"], r["offsetsTwice"], r["seconds"] = committed.Load(), visible, half.twice, *seconds
	r["ok"] = half.twice == 0 && measured.Load() > 0 && visible == committed.Load()
	return r
}

// transactor is one connection with its open transactions; the opaque of a request is the slot of its transaction.
type transactor struct {
	conn   *conn
	number int
	frames []frame
	begun  []time.Time
	keys   [][len(keyMark)]byte
	half   []bool // by slot, whether the answer that is waited for is that of the half message
	count  int64
	header []byte
}

// begin sends a half message.
func (t *transactor) begin(slot int) {
	f := &t.frames[int(t.count)%len(t.frames)]
	now := time.Now()
	digits(f.data, f.opaque, 10, opaqueBase+int64(slot))
	digits(f.data, f.born, 13, now.UnixMilli())
	hex(f.data, f.key, uint32(t.count)*64+uint32(t.number))
	copy(t.keys[slot][:], f.data[f.key:])
	t.begun[slot], t.half[slot] = now, true
	t.count++
	if _, err := t.conn.out.Write(f.ready()); err != nil {
		fail(err)
	}
}

// commit ends a transaction, with the offsets as plain numbers, as clients write them.
func (t *transactor) commit(slot int, queueOffset, logOffset int64) {
	h := append(t.header[:0], `{"code":37,"extFields":{"commitLogOffset":"`...)
	h = strconv.AppendInt(h, logOffset, 10)
	h = append(h, `","commitOrRollback":"8","fromTransactionCheck":"false","msgId":"`...)
	h = append(h, t.keys[slot][:]...)
	h = append(h, `","producerGroup":"loadgen","topic":"`...)
	h = append(h, *topic...)
	h = append(h, `","tranStateTableOffset":"`...)
	h = strconv.AppendInt(h, queueOffset, 10)
	h = append(h, `","transactionId":"`...)
	h = append(h, t.keys[slot][:]...)
	h = append(h, `"},"flag":0,"language":"JAVA","opaque":`...)
	h = strconv.AppendInt(h, opaqueBase+int64(slot), 10)
	h = append(h, `,"serializeTypeCurrentRPC":"JSON","version":479}`...)
	t.header, t.half[slot] = h, false
	var prefix [8]byte
	binary.BigEndian.PutUint32(prefix[:], uint32(4+len(h)))
	binary.BigEndian.PutUint32(prefix[4:], uint32(len(h)))
	_, _ = t.conn.out.Write(prefix[:])
	if _, err := t.conn.out.Write(h); err != nil {
		fail(err)
	}
}

// logOffset is the commit log offset in the msgId of a send's answer: its last 16 hexadecimal digits.
func logOffset(header []byte) (int64, bool) {
	at := bytes.Index(header, []byte(`"msgId"`))
	if at < 0 {
		return 0, false
	}
	rest := header[at+len(`"msgId"`):]
	first := bytes.IndexByte(rest, '"')
	if first < 0 {
		return 0, false
	}
	rest = rest[first+1:]
	length := bytes.IndexByte(rest, '"')
	if length < 16 {
		return 0, false
	}
	offset, err := strconv.ParseInt(string(rest[length-16:length]), 16, 64)
	return offset, err == nil
}

// ends are the next offsets of all queues, asked on one connection in one go.
func ends(c *conn) []int64 {
	for q := 0; q < *queues; q++ {
		f := encode(30, [][2]string{{"topic", *topic}, {"queueId", fmt.Sprint(q)}}, nil)
		digits(f.data, f.opaque, 10, opaqueBase+int64(q))
		_, _ = c.out.Write(f.ready())
	}
	_ = c.out.Flush()
	found := make([]int64, *queues)
	for range found {
		_ = c.SetReadDeadline(time.Now().Add(answerSeconds * time.Second))
		a, err := c.read()
		if err != nil {
			fail(err)
		}
		offset, ok := number(a.header, "offset")
		if a.code != 0 || !ok {
			fail(fmt.Errorf("end of a queue: %s", a.header))
		}
		found[a.opaque-opaqueBase] = offset
	}
	return found
}

// awaitVisible asks how many messages the queues have until there are so many; returns the last answer and its time.
func awaitVisible(wanted int64, seen func(count int64, at time.Time)) (int64, time.Time) {
	c, err := dial(*addr)
	if err != nil {
		fail(err)
	}
	defer c.Close()
	last, at := int64(-1), time.Now()
	for {
		count := int64(0)
		for _, end := range ends(c) {
			count += end
		}
		now := time.Now()
		if seen != nil {
			seen(count, now)
		}
		if count > last {
			last, at = count, now
		}
		if count >= wanted || now.Sub(at) > visibleSeconds*time.Second {
			return count, at
		}
		time.Sleep(pollPause)
	}
}

// timers puts -count messages that are due at one moment, and measures how long after it all are in their queues.
//
// Not counted is how long the puts take. Every message must be there once, and none may have been stored before its time.
func timers() result {
	*deliver = (time.Now().UnixMilli()/timerPrecision + 1 + int64(*lead*1000)/timerPrecision) * timerPrecision
	due := time.UnixMilli(*deliver)
	put := send()
	if time.Until(due) < timerMargin*time.Millisecond { // those put later were no timers
		fail(fmt.Errorf("%d timers took %v of the %g s until they are due: give -lead or a smaller -count",
			*count, put["seconds"], *lead))
	}
	acked, ok := put["acked"].(int64)
	if put["ok"] != true || !ok {
		fmt.Fprintf(os.Stderr, "loadgen: timers were not put: %v\n", put)
		return result{"ok": false, "put": put}
	}
	early := int64(0)
	count, all := awaitVisible(acked, func(count int64, at time.Time) {
		if at.Before(due) {
			early = count
		}
	})
	elapsed := all.Sub(due).Seconds()
	lateness, seen, twice, before := scanTimers(acked, *deliver)
	r := latencies(lateness)
	r["messages"], r["acked"], r["seconds"] = count, acked, round(elapsed)
	r["perSecond"], r["putPerSecond"] = round(float64(count)/elapsed), put["perSecond"]
	r["seen"], r["twice"], r["early"] = seen, twice, early+before
	r["ok"] = count == acked && seen == acked && twice == 0 && early+before == 0
	return r
}

// scanTimers reads all queues: by how much each message was stored too late (in µs), how many different ones there
// are, how many are there again, and how many were stored before their time.
func scanTimers(count, due int64) (lateness []int32, seen, twice, early int64) {
	bits := make([]bool, count)
	for q := 0; q < *queues; q++ {
		readQueue(q, "TAG", "*", func(r record) {
			late := r.stored - due
			if late < 0 {
				early++
			}
			lateness = append(lateness, int32(late*1000))
			n, err := strconv.ParseInt(string(r.body[:numberWidth]), 10, 64)
			if err != nil || n < 0 || n >= count {
				fail(fmt.Errorf("a message that was not put: %q", r.body[:numberWidth]))
			}
			if bits[n] {
				twice++
				return
			}
			bits[n] = true
			seen++
		})
	}
	return lateness, seen, twice, early
}

// record is one message of a pull's answer.
type record struct {
	queueOffset, stored int64
	body                []byte
}

// records calls each for every record of a pull's answer.
func records(body []byte, each func(record)) error {
	at := 0
	return walk(body, func(queueOffset int64, content []byte, _ uint32) {
		v6 := 0
		if binary.BigEndian.Uint32(body[at+36:])&(1<<4) != 0 {
			v6 = 12
		}
		each(record{queueOffset, int64(binary.BigEndian.Uint64(body[at+56+v6:])), content})
		at += int(binary.BigEndian.Uint32(body[at:]))
	})
}

// readQueue pulls a queue from its beginning to its end with an expression that chooses; returns how many pulls there were.
func readQueue(q int, kind, expression string, each func(record)) int64 {
	c, err := dial(*addr)
	if err != nil {
		fail(err)
	}
	defer c.Close()
	f := pullFrame(*group, *topic, q, false, kind, expression)
	pulls, next := int64(0), int64(0)
	for {
		digits(f.data, f.opaque, 10, opaqueBase+pulls)
		digits(f.data, f.at, 16, next)
		_, _ = c.Write(f.ready())
		_ = c.SetReadDeadline(time.Now().Add(answerSeconds * time.Second))
		a, err := c.read()
		if err != nil {
			fail(err)
		}
		if a.code == notFoundCode {
			return pulls
		}
		to, ok := number(a.header, "nextBeginOffset")
		if a.code != 0 && a.code != retryCode || !ok || to <= next {
			fail(fmt.Errorf("pull of queue %d at %d: %s", q, next, a.header))
		}
		pulls++
		if a.code == 0 {
			if err := records(a.body, each); err != nil {
				fail(err)
			}
		}
		next = to
	}
}

// filtered pulls every queue once with a filter that one of -tags messages matches, all queues at the same time.
//
// Counted are the messages that match; every one must, and in every queue there must be as many as were sent.
func filtered() result {
	var matched, size_, wrong, pulls, scanned atomic.Int64
	var group sync.WaitGroup
	expression := fmt.Sprintf("t%d", wantedTag)
	if *kind == "SQL92" {
		expression = fmt.Sprintf("color = 'c%d' AND n > %d", wantedTag, wantedTag-1)
	}
	c, err := dial(*addr)
	if err != nil {
		fail(err)
	}
	last := ends(c)
	c.Close()
	start := time.Now()
	for q := 0; q < *queues; q++ {
		scanned.Add(last[q])
		group.Add(1)
		go func(q int) {
			defer group.Done()
			found := int64(0)
			pulls.Add(readQueue(q, *kind, expression, func(r record) {
				found++
				size_.Add(int64(len(r.body)))
				if r.body[0] != '0'+wantedTag {
					wrong.Add(1)
				}
			}))
			if found != last[q]/int64(*tags) {
				wrong.Add(1)
				fmt.Fprintf(os.Stderr, "queue %d: %d of %d messages, one of %d was expected\n", q, found, last[q], *tags)
			}
			matched.Add(found)
		}(q)
	}
	group.Wait()
	elapsed := time.Since(start).Seconds()
	return result{"messages": matched.Load(), "perSecond": round(float64(matched.Load()) / elapsed),
		"scannedPerSecond": round(float64(scanned.Load()) / elapsed), "seconds": round(elapsed),
		"MiBps": round(float64(size_.Load()) / elapsed / (1 << 20)), "pulls": pulls.Load(), "bad": wrong.Load(),
		"ok": wrong.Load() == 0 && matched.Load() > 0}
}
