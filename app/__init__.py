"""Earlybyte: the life of a turn, each line pointing to its file.

1.  A request comes in and is checked:                    api/routes/turns.py, api/auth.py
2.  May it begin? Key, conversation, capacity:            turns/admission.py
3.  It waits for its conversation and a slot:             turns/supervisor.py
4.  It begins, and its story is told from top to bottom:  turns/runner.py
5.  The agent thinks; the model runs in a thread:         turns/thinking.py, agents/tool_loop.py, providers/
6.  Its words cross to the loop:                          agents/bridge.py, agents/speech.py
7.  Tools run, on record before they do:                  agents/tool_desk.py, tools/execution.py
8.  Everything shown is numbered and encoded once:        turns/recorder.py, events/codec.py
9.  Viewers read the log, each with its cursor:           turn_log/subscription.py, api/sse.py
10. It ends for one cause, in one terminal event:         turns/state.py, turns/outcome.py
11. The message is saved, or owed until it can be:        turns/bookkeeping.py, turns/unsaved.py
12. After a crash it goes forward from its journal:       turns/recovery.py
"""
